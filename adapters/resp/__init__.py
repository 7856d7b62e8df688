"""The shared store on a server that speaks RESP (Valkey, Redis, Dragonfly): `connection` (the client and its errors),
`shared_store` (records as its values)."""
