"""Simulated requests under a memory bound."""
