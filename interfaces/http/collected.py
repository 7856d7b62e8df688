"""A plain answer: everything the choices of a request received, once all of them have finished."""

from dataclasses import dataclass, field

from domain.errors import DomainError, ServerUnavailable
from domain.request import FinishReason
from domain.stream import Failed, Finished, TextDelta
from interfaces.http.fan_in import FanIn


@dataclass(slots=True)
class Collected:
    """One choice. `finished` is set when `collect` returns."""

    deltas: list[TextDelta] = field(default_factory=list[TextDelta])
    finished: Finished | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]


async def collect(choices: FanIn) -> list[Collected]:
    """In order of index. Raises the error of the first choice that failed. The caller closes `choices`."""
    collected = [Collected() for _ in range(choices.num_choices)]
    while choices.is_open:
        index, item = await choices.next()
        match item:
            case TextDelta():
                collected[index].deltas.append(item)
            case Finished():
                if (cut := cut_off(item)) is not None:
                    raise cut
                collected[index].finished = item
            case Failed(error=error):
                raise error
            case _:
                pass
    return collected


def cut_off(item: Finished) -> DomainError | None:
    """The error to report where the server cancelled the completion: an answer cut short must not look complete."""
    cancelled = item.reason is FinishReason.CANCELLED
    return ServerUnavailable("the request was cancelled by the server") if cancelled else None


__all__ = ("Collected", "collect", "cut_off")
