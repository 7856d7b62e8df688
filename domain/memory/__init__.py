"""How much memory computing takes, what is held of it, and what is done when it gets short."""
