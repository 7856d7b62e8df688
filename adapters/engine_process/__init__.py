"""The engine in a process of its own: both ends of the socket between text side and token side."""
