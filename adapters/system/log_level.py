"""The level of Cairn's log: its own lines from that level on, those of libraries from warning, or all with debug."""

import logging


def set_log_level(level: str) -> None:
    """Any thread; at any time."""
    logging.getLogger().setLevel("DEBUG" if level == "debug" else "WARNING")
    logging.getLogger("cairn").setLevel(level.upper())
