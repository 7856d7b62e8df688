"""What the rest of the adapter needs of MLX and the process: device, typed calls, small files."""
