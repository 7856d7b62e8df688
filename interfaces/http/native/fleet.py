"""GET /admin/api/fleet: the other servers of the fleet. For admins."""

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from interfaces.http.native.requests import admin_get
from interfaces.http.services import Services


class PeerBody(Struct):
    """A server, as it answers without a key. `ready`: null without an answer; `problem` says why then, or why it is not
    ready. `version`, `reuse`: null where they need a key; `reuse`: the share of prompt tokens of the last 15 minutes, 0
    to 1. `waiting` and `running` count requests."""

    url: str
    ready: bool | None
    problem: str
    waiting: int | None
    running: int | None
    version: str | None
    reuse: float | None


class FleetBody(Struct, tag_field="object", tag="cairn.fleet"):
    """The servers of `fleet.peers`, a few seconds old at most."""

    data: list[PeerBody]


def fleet_routes(services: Services) -> list[HTTPRouteHandler]:
    @admin_get("/fleet", "readFleet")
    async def read_fleet() -> FleetBody:
        found = await services.peers.states()
        return FleetBody(
            [
                PeerBody(
                    *(one.url, one.is_ready, one.problem, one.num_waiting, one.num_running, one.version, one.reuse)
                )
                for one in found
            ]
        )

    return [read_fleet]
