"""The parts of an HTTP answer that all dialects share. Uses `incoming`; each dialect implements `dialect`."""
