"""A client of a running server, and views of its answers. Uses `terminal`."""
