"""What a server says of itself at one moment, read from its admin API: figures, and the requests that are open."""

from dataclasses import dataclass

from interfaces.cli.running_server import RunningServer
from interfaces.http.admin.overview import OverviewBody
from interfaces.http.admin.requests import RequestListBody
from interfaces.http.answers import data_of

TIMEOUT_S = 5.0
NUM_ENDED = 50


@dataclass(frozen=True, slots=True)
class Reading:
    overview: OverviewBody
    requests: RequestListBody

    def as_data(self) -> dict[str, object]:
        """As the server's own JSON has it."""
        return {"overview": data_of(self.overview), "requests": data_of(self.requests)}


async def read(server: RunningServer) -> Reading:
    """Raises NoAnswer."""
    overview = await server.ask("/admin/api/overview", timeout_s=TIMEOUT_S)
    requests = await server.ask(f"/admin/api/requests?ended={NUM_ENDED}", timeout_s=TIMEOUT_S)
    return Reading(server.understood(overview, OverviewBody), server.understood(requests, RequestListBody))


__all__ = ("NUM_ENDED", "Reading", "read")
