"""A client of a running server, and views of what it answers. Uses `terminal`."""
