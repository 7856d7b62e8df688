"""The metrics as data and the sinks that feed them. Uses `spans` for attributes that both have."""
