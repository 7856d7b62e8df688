"""Request fields that several dialects share, and their mapping to domain values. Uses `incoming`, `answering`."""
