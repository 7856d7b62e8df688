"""All contact with mlx-lm's cache classes; tests/contract/compute/test_mlx_lm_caches.py proves it.

classes < leaves < rows, hidden; kv_rows is Cairn's own class for full KV of a batch.
"""
