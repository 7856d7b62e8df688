"""The token side: one compute thread that schedules, prefills and decodes sequences of token ids, and knows no text.

engine_thread > engine_loop > sequence_run, loaded_models > memory_guard > memory_readings; all use event_batcher.
"""
