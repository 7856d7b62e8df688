"""A Quantiser in a process of its own."""
