"""What a server says of itself at one moment, read from its admin API: figures, and the requests that are open."""

from dataclasses import dataclass
from typing import TypeVar

import msgspec

from interfaces.cli.running_server import NoAnswer, RunningServer
from interfaces.http.admin.overview import OverviewBody
from interfaces.http.admin.requests import RequestListBody

TIMEOUT_S = 5.0
NUM_ENDED = 50

_Body = TypeVar("_Body", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Reading:
    overview: OverviewBody
    requests: RequestListBody

    def as_data(self) -> dict[str, object]:
        """As the server's own JSON has it."""
        bodies = {"overview": self.overview, "requests": self.requests}
        return {name: msgspec.to_builtins(body) for name, body in bodies.items()}


async def read(server: RunningServer) -> Reading:
    """Raises NoAnswer."""
    overview = await server.ask("/admin/api/overview", timeout_s=TIMEOUT_S)
    requests = await server.ask(f"/admin/api/requests?ended={NUM_ENDED}", timeout_s=TIMEOUT_S)
    return Reading(_typed(overview, OverviewBody), _typed(requests, RequestListBody))


def _typed(answer: dict[str, object], body: type[_Body]) -> _Body:
    try:
        return msgspec.convert(answer, body)
    except msgspec.ValidationError as error:
        raise NoAnswer(f"what answers there is not this version of Cairn: {error}") from None


__all__ = ("NUM_ENDED", "Reading", "read")
