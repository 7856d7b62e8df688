"""Engines, models and clocks for tests of the engine port and what is above it."""
