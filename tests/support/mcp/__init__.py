"""Tool servers for tests."""
