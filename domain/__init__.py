"""The pure core: values, state machines and decisions. Standard library only; no I/O, clock, randomness or threads."""
