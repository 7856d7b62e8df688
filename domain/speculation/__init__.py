"""Drafters and the decision how far to draft: lookup, costs, acceptance, depth. Uses `id_row`; knows no model."""
