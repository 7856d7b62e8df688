"""The settings of a server that is one of several."""

import re
from dataclasses import dataclass

from domain.errors import require

MAX_PEERS = 32

_ADDRESS = re.compile(r"https?://[A-Za-z0-9._:\[\]-]{1,255}")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """`peers`: addresses of the other servers, as http://HOST:PORT, which the admin page lists. They are asked without
    a key."""

    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        is_right = all(_ADDRESS.fullmatch(one) for one in self.peers)
        require(is_right, "fleet.peers", "must be like http://10.0.0.2:8000, without a path")
        require(len(self.peers) <= MAX_PEERS, "fleet.peers", f"must be {MAX_PEERS} at most")
