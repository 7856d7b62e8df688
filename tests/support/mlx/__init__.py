"""Tiny models and tokenizers of every family, and the machine's MLX made repeatable."""
