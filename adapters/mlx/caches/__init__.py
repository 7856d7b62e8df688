"""All contact with mlx-lm's cache classes; tests/contract/test_mlx_lm_caches.py holds them to what is said here."""
