"""The two architectures in PyTorch: Qwen3 (attention) and Qwen3.5 dense (gated delta and attention)."""
