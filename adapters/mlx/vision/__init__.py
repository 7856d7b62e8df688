"""Images: the towers of mlx-vlm, and how their features enter the trunks of mlx-lm."""
