"""MLX, mlx-lm and the process as the rest of the adapter uses them: typed calls, device, imports, small files."""
