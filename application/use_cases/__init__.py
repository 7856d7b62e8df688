"""One thing a caller can ask for, a file each."""
