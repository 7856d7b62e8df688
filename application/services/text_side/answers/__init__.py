"""A request on the text side: its prompt encoded and checked, its answer parsed and read. Uses `models`."""
