"""Long-lived parts: the engine loop, the prefix cache (`prefix`), the model pool."""
