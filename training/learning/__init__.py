"""Batches, steps and schedules of the training runs."""
