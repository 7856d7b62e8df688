"""Quantised copies of models: planned by names and shapes, then written tensor by tensor."""
