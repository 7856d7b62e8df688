"""Ports, services and use cases: Cairn's behaviour, independent of any framework or library."""
