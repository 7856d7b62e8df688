"""Servers under test: fake, live, killed, held, foreign."""
