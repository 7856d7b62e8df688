"""Documents in SQLite: `database` (one file, or memory) and `document_store` (the adapter, which contains faults)."""
