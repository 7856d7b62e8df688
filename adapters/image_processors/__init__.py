"""Images measured and prepared by the image processors of transformers, which need Pillow and numpy only."""
