"""The shared tier: `access` (whether the store is asked, and what is written to it), `tier` (what is read)."""
