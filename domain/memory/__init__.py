"""The memory that computation takes, the ledger of what is held, and the reaction to memory pressure."""
