"""The bytes on disk (docs/store-format.md): rows, pieces of payload, pages, headers. Uses `lmdb.faults`."""
