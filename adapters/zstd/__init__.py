"""The state codec on zstd: `frame` (the header), `planes` (the bytes of numbers), `codec` (the adapter)."""
