"""Text deltas that wait to be read, joined once when they are: adding one costs what is in it, however many wait."""

from domain.stream import TextDelta, TokenLogprob

_TOKEN_BYTES = 100
_LOGPROB_BYTES = 150


def held_bytes(delta: TextDelta) -> int:
    """An estimate of the memory a delta takes; additive over what is merged."""
    alternatives = sum(1 + len(logprob.top) for logprob in delta.logprobs)
    return len(delta.text) + _TOKEN_BYTES * len(delta.token_ids) + _LOGPROB_BYTES * alternatives


class UnreadText:
    """One or more deltas of one stream, in order."""

    __slots__ = ("_logprobs", "_texts", "_token_ids")

    def __init__(self, *deltas: TextDelta) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        for delta in deltas:
            self.add(delta)

    def add(self, delta: TextDelta) -> None:
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs

    def joined(self) -> TextDelta:
        """All of them as one."""
        return TextDelta("".join(self._texts), tuple(self._token_ids), tuple(self._logprobs))


__all__ = ("UnreadText", "held_bytes")
