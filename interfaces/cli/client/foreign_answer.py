"""What came from a server that may be anybody's: read no further than a bound, and decoded as JSON or refused.

Whoever shows a text of it does so through `domain/shown.py`.
"""

import json
import math
from typing import TYPE_CHECKING, Any, NoReturn

from domain.byte_size import format_bytes

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 16 * 2**20

MAX_DIGITS = 20
"""Of a whole number, its sign included: what 64 bits hold has no more (a budget without a bound is 2^63 - 1), and
floats can be made of it."""


async def content_of(response: "httpx.Response") -> bytes:
    """The body of a response that is streamed. Raises ValueError when it is longer than `MAX_ANSWER_BYTES`."""
    content = bytearray()
    async for data in response.aiter_bytes():
        content += data
        if len(content) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is longer than {format_bytes(MAX_ANSWER_BYTES)}")
    return bytes(content)


def decoded(content: bytes) -> Any:
    """JSON with numbers that can be computed with. Raises ValueError, for what is nested too deeply as well."""
    try:
        return json.loads(content, parse_int=_whole, parse_float=_finite, parse_constant=_refused)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None


def _whole(text: str) -> int:
    return int(text) if len(text) <= MAX_DIGITS else _refused(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text)


def _refused(text: str) -> NoReturn:
    raise ValueError(f"the answer has a number that nothing is: {text[:20]}")
