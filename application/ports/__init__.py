"""The interfaces that adapters implement, as Protocols. One port a file; the docstring is the contract."""
