"""The prefix cache: what was computed once for a prompt is kept, found, restored and explained."""
