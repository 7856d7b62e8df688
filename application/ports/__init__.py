"""What the application needs from outside, as Protocols. One port a file; the docstring is the contract."""
