"""Pairs of texts with one meaning, for the embedding model."""
