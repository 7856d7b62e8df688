"""Ports, services and use cases: what Cairn does, without knowing any framework or library it is done with."""
