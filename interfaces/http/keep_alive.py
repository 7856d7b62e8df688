"""What a silent stream says meanwhile, as a comment line: where its slowest choice is."""

from domain.stream import Admitted, PrefillProgress, StreamItem


class KeepAlive:
    """Feed every item; `text` describes the choice that is furthest behind."""

    __slots__ = ("_latest",)

    def __init__(self, num_choices: int) -> None:
        self._latest: list[StreamItem | None] = [None] * num_choices

    def feed(self, index: int, item: StreamItem) -> None:
        self._latest[index] = item

    @property
    def text(self) -> str:
        """`queued`, `prefill 512/2000` or `working`."""
        if None in self._latest:
            return "queued"
        for item in self._latest:
            if isinstance(item, PrefillProgress):
                return f"prefill {item.num_done}/{item.num_total}"
            if isinstance(item, Admitted):
                return f"prefill {item.explanation.stopped_at}/{item.explanation.num_prompt}"
        return "working"


__all__ = ("KeepAlive",)
