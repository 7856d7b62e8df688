"""All that Cairn knows of mlx-vlm: its modules, its families, and its text networks as trunks."""
