"""Models as files: embedded, in local folders, and from the Hugging Face hub."""
