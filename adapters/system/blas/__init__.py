"""The BLAS that MLX computes with on a Linux CPU: found, checked, loaded before MLX."""
