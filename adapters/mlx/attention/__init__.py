"""Attention on CUDA where mlx-lm's own is slow. Uses `caches` and `runtime`."""
