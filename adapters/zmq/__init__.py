"""KV events over ZeroMQ, in the format of vLLM's consumers."""
