"""A store's upkeep: opening, containing faults, recounting, compacting. Uses `index`, `file` and `format`."""
