"""Processes and threads that tests start, hold and end."""
