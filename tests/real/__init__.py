"""Tests on a real small chat model; `make test-real` fetches it."""
