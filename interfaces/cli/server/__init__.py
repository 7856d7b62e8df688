"""The process of `cairn serve`, and the child process of its engine. Uses `terminal`."""
