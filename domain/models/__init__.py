"""A model before and after loading, its state layout, and whose turn it is to be loaded. Uses `memory`."""
