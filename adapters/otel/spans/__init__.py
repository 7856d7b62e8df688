"""Requests as spans, grown from events."""
