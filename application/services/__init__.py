"""Long-lived parts: the engine loop, the prefix cache, the model pool."""
