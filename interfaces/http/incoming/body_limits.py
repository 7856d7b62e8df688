"""Limits of request bodies: the bytes of all of them together, and the values that one may be decoded into."""

from collections.abc import Iterable

from domain.byte_size import format_bytes
from domain.errors import InvalidRequest, ServerUnavailable
from domain.request.chat import ChatMessage

MIN_BUDGET_BYTES = 256 * 2**20
BODIES_AT_ONCE = 4
"""The budget has room for so many bodies of the largest size, where that is more."""

MAX_NODES = 2**20
"""Bound on `num_nodes` of one body. A conversation of 2,000 turns with 200 tools has a third of it; a prompt of a
million token ids fits."""

CONTAINER_NODES = 16
"""Weight of an object or array, which takes some 100 to 200 bytes of memory, against that of a string or number."""


class BodiesFull(ServerUnavailable):
    """The bodies of requests that are not answered yet leave no room for this one."""

    code = "bodies_full"


class BodyBudget:
    """Memory that the bodies of all unanswered requests may take, half of it at most for one key, or for one address
    without a key. Event loop only.

    A body counts as it arrives, not as it is announced, so that no header takes room; and until its request is
    answered, because the application keeps it that long. A body without room is refused and never waited for: bodies
    that are each half there would wait for one another.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self.max_bytes = max(MIN_BUDGET_BYTES, BODIES_AT_ONCE * max_body_bytes)
        self.held_bytes = 0
        self._held_by: dict[str, int] = {}

    def take(self, owner: str, num_bytes: int) -> None:
        """Raises BodiesFull."""
        held_bytes = self._held_by.get(owner, 0) + num_bytes
        if held_bytes > self.max_bytes // 2:
            self._refuse("your requests that are being answered already hold bodies of", self.max_bytes // 2)
        if self.held_bytes + num_bytes > self.max_bytes:
            self._refuse("the requests that are being answered already hold bodies of", self.max_bytes)
        self.held_bytes += num_bytes
        self._held_by[owner] = held_bytes

    def give_back(self, owner: str, num_bytes: int) -> None:
        self.held_bytes -= num_bytes
        left_bytes = self._held_by.get(owner, 0) - num_bytes
        if left_bytes:
            self._held_by[owner] = left_bytes
        else:
            self._held_by.pop(owner, None)

    def _refuse(self, why: str, num_bytes: int) -> None:
        raise BodiesFull(f"{why} {format_bytes(num_bytes)}; try again later")


def num_nodes(text: bytes) -> int:
    """Weighted number of values in JSON, found by counting bytes: what decoding it costs in memory and time. Never too
    low. 16 MiB take some 20 ms, and up to 200 ms where strings look like JSON themselves and have to be left out."""
    num = _counted(text)
    if num <= MAX_NODES:
        return num
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text
    num_strings = plain.count(b'"') // 2
    if num_strings > MAX_NODES:
        return num
    return num_strings + _counted(b"".join(plain.split(b'"')[::2]))


def check_nodes(text: bytes, field: str | None = None) -> None:
    """Raises InvalidRequest for JSON of more than MAX_NODES: each byte of it could become 46 bytes of memory. `field`:
    the name of the text, if it is not the whole body."""
    if len(text) * CONTAINER_NODES > MAX_NODES and num_nodes(text) > MAX_NODES:
        raise InvalidRequest(
            f"{field or 'the body'} holds more than {MAX_NODES} values (an object or array counts as"
            f" {CONTAINER_NODES}); send less at once",
            param=field,
        )


def check_arguments(messages: Iterable[ChatMessage], field: str) -> None:
    """Raises InvalidRequest where the arguments of all tool calls, JSON inside of strings, hold too many values."""
    num = sum(num_nodes(call.arguments.encode()) for message in messages for call in message.tool_calls)
    if num > MAX_NODES:
        raise InvalidRequest(f"{field}: the arguments of tool calls hold more than {MAX_NODES} values", param=field)


def _counted(text: bytes) -> int:
    num_containers = text.count(b"[") + text.count(b"{")
    return CONTAINER_NODES * num_containers + text.count(b'"') // 2 + text.count(b",")
