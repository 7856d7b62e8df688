"""Generated pictures and conversations about them; deterministic for a seed (pictures: and a version of Pillow)."""
