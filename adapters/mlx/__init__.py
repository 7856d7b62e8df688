"""Models on MLX: loading, prefill, batched decode, sampling, and state in and out of the caches.

runtime < caches, sampling < speculation, cuda < state < memory < batch < decoder < model < loading < engine.
Each uses those before it.
"""
