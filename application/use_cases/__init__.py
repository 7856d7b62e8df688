"""The use cases: a class and a file for each thing that a caller can ask of the server."""
