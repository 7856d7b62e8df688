"""Conversations replayed against several servers, and their scripts."""
