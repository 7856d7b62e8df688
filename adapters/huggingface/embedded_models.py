"""The models that come with Cairn, so that a fresh machine has something real to serve."""

from pathlib import Path

from domain.ids import ModelId

_FOLDER = Path(__file__).parent / "embedded"

EMBEDDED_IDS = (ModelId("cairn-demo"), ModelId("cairn-demo-hybrid"))
"""`cairn-demo`: attention only. `cairn-demo-hybrid`: gated delta and attention layers."""

EMBEDDED_NOTE = (
    "Comes with Cairn to try it out: some 12 million parameters, trained on generated chats. It recalls what it is"
    " told, extracts JSON, calls tools and makes small talk; it knows nothing of the world and is no assistant."
)
"""What their cards say, in short."""


def embedded_folder(id: ModelId) -> Path | None:
    """The folder of an embedded model; None for any other id."""
    return _FOLDER / id if id in EMBEDDED_IDS else None
