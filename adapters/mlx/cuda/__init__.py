"""The parts that only an NVIDIA GPU uses: attention where mlx-lm's is slow, and copies at the bus's own speed."""
