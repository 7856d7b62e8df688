"""A model before and after loading, its state layout, and which models are resident. Uses `memory`."""
