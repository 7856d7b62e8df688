"""From logits to tokens, all rows of a decode group at once. Uses `runtime`."""
