"""The shared tier: `access` (whether the store is asked), `queue` (what is written to it), `tier` (what is read)."""
