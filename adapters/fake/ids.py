"""Ids and seeds that count up, so that a test can name them beforehand."""

from itertools import count

from domain.ids import RequestId


class FakeIds:
    """An IdSource: `chatcmpl-1`, `chatcmpl-2`, ..., calls `call_0...01`, ... and seeds 1, 2, ... (next() on a count is
    atomic)."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._calls = count(1)
        self._seeds = count(1)

    def request_id(self, prefix: str) -> RequestId:
        return RequestId(f"{prefix}-{next(self._ids)}")

    def call_id(self) -> str:
        return f"call_{next(self._calls):024x}"

    def seed(self) -> int:
        return next(self._seeds)
