"""Parts that operators' routes share: health, memory, tiers, explanations. Used by `admin`, `cache`, `native`."""
