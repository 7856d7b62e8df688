"""Support for tests of a store's end: kills, power cuts and damaged files."""
