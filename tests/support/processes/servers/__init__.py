"""Servers of other projects that tests start, and certificates for them."""
