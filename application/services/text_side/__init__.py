"""The text side, on the event loop: prompts in, text out. It knows the token side by `ports/engine` only."""
