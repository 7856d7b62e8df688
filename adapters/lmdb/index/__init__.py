"""The store's index in transactions: reading, writing, recency, making room. Uses `file` and `format`."""
