"""Checks that the settings share."""

from collections.abc import Mapping

from domain.errors import require

FIXED: Mapping[str, bool] = {"is_fixed": True}
"""Metadata of fields that no file, variable or flag sets; only code that makes its own settings may change them."""


def check_choice(value: str | None, name: str, *allowed: str) -> None:
    """`value` None: unset."""
    listed = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
    require(value is None or value in allowed, name, f"must be {listed}")
