"""Compaction: the conversation so far, replaced by a summary that its model wrote.

    input, compaction_trigger --one more turn--> summary, sealed --> item `compaction` --in a later input--> window

The trigger is a question behind the conversation, so that the prompt of the turn before is reused. In a later input the
last compaction replaces what the assistant and its tools said before it; messages of others stay. It is read as the
summary, in a message of the user, and the calls that had no result yet: their results follow in the client's input.
"""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest, digest
from typing import Any

import msgspec
from msgspec import Raw, Struct

from domain.errors import ComputeFailed
from domain.request.document import DocumentKey, Owner
from interfaces.http.incoming.json_body import MAX_NODES, num_nodes

TRIGGER = Raw(b'{"type":"compaction_trigger"}')

INSTRUCTION = (
    "Summarise this conversation. Your summary will replace it, and you will go on from the summary alone. Keep all"
    " that is needed for that: the task and the wishes of the user; decisions and their reasons; what was done and"
    " found, with the exact names, paths, commands, values and errors; what is unfinished, and the next step. Write the"
    " summary only. Do not call tools."
)
OPENING = (
    "The conversation so far was replaced by the following summary of it. Go on from there: answer what was asked last,"
    " or take the next step.\n\n"
)
CUT_OFF = "\n\n[The summary was cut off here.]"

MAX_TOKENS = 8_192
"""Bound on a summary, where the client sets none."""

_MAC_BYTES = 32


class NoSummary(ComputeFailed):
    """The answer of the model has no text."""

    def __init__(self) -> None:
        super().__init__("the model wrote no summary of the conversation; try again, or send a shorter conversation")


class Compaction(Struct):
    """The content of an item. `calls`: items of the calls that had no result."""

    summary: str
    calls: list[Raw]


_contents = msgspec.json.Decoder(Compaction)


@dataclass(frozen=True, slots=True)
class Seal:
    """Binds the content of items to a model, by the client's name for it, and to a tenant: what was changed, or belongs
    to another, is not opened. Its key is made of both, and is as secret as the salts of the tenant. Nothing is
    encrypted: the content is the client's own conversation."""

    model: str = ""
    tenant: str = ""

    def close(self, content: Compaction) -> str:
        payload = msgspec.json.encode(content)
        return urlsafe_b64encode(self._mac(payload) + payload).decode()

    def open(self, text: str) -> Compaction | None:
        """Returns None for what this seal has not closed."""
        try:
            sealed = b64decode(text, altchars=b"-_", validate=True)
            payload = sealed[_MAC_BYTES:]
            is_own = compare_digest(self._mac(payload), sealed[:_MAC_BYTES]) and num_nodes(payload) <= MAX_NODES
            return _contents.decode(payload) if is_own else None
        except (ValueError, RecursionError):
            return None

    def _mac(self, payload: bytes) -> bytes:
        return digest(DocumentKey(Owner(self.tenant), "compaction", self.model).id, payload, "sha256")


NO_SEAL = Seal()
"""The seal of a request without a model and a tenant."""


@dataclass(frozen=True, slots=True)
class Compacting:
    """The making of one item. `calls`: those without a result, `kept`: the items beside it, of a conversation that it
    replaces."""

    seal: Seal
    calls: Sequence[Raw]
    kept: Sequence[Raw]

    def item(self, id: str, summary: str, *, is_cut: bool = False) -> dict[str, Any]:
        """Raises NoSummary."""
        if not summary.strip():
            raise NoSummary
        content = Compaction(summary.strip() + (CUT_OFF if is_cut else ""), list(self.calls))
        return {"id": id, "type": "compaction", "encrypted_content": self.seal.close(content)}
