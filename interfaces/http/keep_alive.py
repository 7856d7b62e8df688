"""Where the slowest choice of a silent stream is, for the sign of life that its dialect sends."""

from dataclasses import dataclass

from domain.stream import Admitted, PrefillProgress, StreamItem


@dataclass(frozen=True, slots=True)
class Progress:
    """`text`: `queued`, `prefill 512/2000` or `working`. The prompt's tokens are 0 unless it is being computed."""

    text: str
    num_done: int = 0
    num_total: int = 0


class KeepAlive:
    """Feed every item; `progress` is that of the choice that is furthest behind."""

    __slots__ = ("_latest",)

    def __init__(self, num_choices: int) -> None:
        self._latest: list[StreamItem | None] = [None] * num_choices

    def feed(self, index: int, item: StreamItem) -> None:
        self._latest[index] = item

    @property
    def progress(self) -> Progress:
        if None in self._latest:
            return Progress("queued")
        for item in self._latest:
            if isinstance(item, PrefillProgress):
                return _prefill(item.num_done, item.num_total)
            if isinstance(item, Admitted):
                return _prefill(item.explanation.stopped_at, item.explanation.num_prompt)
        return Progress("working")


def _prefill(num_done: int, num_total: int) -> Progress:
    return Progress(f"prefill {num_done}/{num_total}", num_done, num_total)


__all__ = ("KeepAlive", "Progress")
