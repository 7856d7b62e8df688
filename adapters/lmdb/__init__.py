"""The block store on LMDB, docs/store-format.md. Modules use those before them: `faults`, `rows`, `payload` (the format),
`private_files`, `directory`, `notes`, `environment` (the files), `transaction`, `writer`, `reading` (the records), `probe`,
`compaction`, `integrity`, `containment` (the upkeep), `block_store` (the adapter).
"""
