"""The shared store on a server that speaks RESP (Valkey, Redis, Dragonfly): `value` (a record as bytes), `connection`
(the client and its errors), `shared_store` (the adapter)."""
