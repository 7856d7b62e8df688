"""The token side, on the compute thread and its workers: scheduling, prefill, decode. It knows no text."""
