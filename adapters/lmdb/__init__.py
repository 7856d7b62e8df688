"""The block store on LMDB (docs/store-format.md). Modules use those before them: `faults`, `rows`, `payload` (format),
`private_files`, `directory`, `notes`, `environment` (files), `transaction`, `writer`, `reading` (records), `probe`,
`compaction`, `integrity`, `containment` (upkeep), `block_store` (the adapter).
"""
