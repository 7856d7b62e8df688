"""The models that come with Cairn, so that a fresh machine has something real to serve."""

from pathlib import Path

from domain.ids import ModelId

_FOLDER = Path(__file__).parent / "embedded"

EMBEDDED_IDS = (ModelId("cairn-demo"), ModelId("cairn-demo-hybrid"))
"""`cairn-demo`: attention only. `cairn-demo-hybrid`: gated delta and attention layers."""


def embedded_folder(id: ModelId) -> Path | None:
    """The folder of an embedded model; None for any other id."""
    return _FOLDER / id if id in EMBEDDED_IDS else None


__all__ = ("EMBEDDED_IDS", "embedded_folder")
