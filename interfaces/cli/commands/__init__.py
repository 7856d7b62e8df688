"""The commands, and the parts that only commands use. Uses `client`, `server` and `terminal`."""
