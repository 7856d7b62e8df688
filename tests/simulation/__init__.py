"""Seeded simulation of the real services on the toy engine. `python -m tests.simulation SEED` replays one run."""
