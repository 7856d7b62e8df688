"""One request on the text side: its prompt in, its parsed answer out. Uses `models`."""
