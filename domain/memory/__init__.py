"""What a model needs of memory, what there is, and what is done when they come close."""
