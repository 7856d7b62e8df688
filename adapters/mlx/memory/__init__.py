"""Memory as MLX has it: readings, shapes, measured peaks. Uses `caches` and `runtime`."""
