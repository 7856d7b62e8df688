"""Stores that hang, fail, are killed or lose power, and records to fill them with."""
