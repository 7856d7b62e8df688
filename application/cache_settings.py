"""The settings of prefix reuse, and of the KV events that tell others of it."""

import re
from dataclasses import dataclass, field

from application.setting_checks import FIXED, check_choice
from domain.byte_size import ByteSize
from domain.errors import require
from domain.host_name import address_of

_ADDRESS = re.compile(r"tcp://([0-9.]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
MAX_BLOCK = 4_096


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Prefix reuse. `exact`: restore only at grid positions (bit-identical to recomputing). `show_text`: explanations
    quote stored prompts: on, off, or auto (see `Settings.shows_text`). `live_states`: the bound on states of ended
    sequences that are kept for the next turn of their conversation. They are evicted before anything else, so that the
    bound matters for one long conversation. 0 keeps none.

    `events`: the address on which kept blocks are published to routers; empty for none. `events_replay`: the address on
    which they ask for what they missed. `events_topic`: the topic of all events. `events_block`: tokens
    of a published block. `events_hash`: how hashes are sent, int or bytes.
    """

    exact: bool = False
    salt: str = ""
    show_text: str = "auto"
    live_states: ByteSize = field(default=ByteSize(share=0.5), metadata=FIXED)
    events: str = ""
    events_replay: str = ""
    events_topic: str = ""
    events_block: int = 16
    events_hash: str = "int"

    def __post_init__(self) -> None:
        check_choice(self.show_text, "cache.show_text", "auto", "on", "off")
        check_choice(self.events_hash, "cache.events_hash", "int", "bytes")
        require(1 <= self.events_block <= MAX_BLOCK, "cache.events_block", f"must be in 1..{MAX_BLOCK}")
        require(not self.events_replay or bool(self.events), "cache.events_replay", "needs cache.events")
        require(
            not (self.events and self.salt), "cache.events", "needs cache.salt to be empty: nothing salted is published"
        )
        for name, value in (("events", self.events), ("events_replay", self.events_replay)):
            found = _ADDRESS.fullmatch(value)
            address = address_of(found[1].strip("[]")) if found is not None else None
            is_near = address is not None and not address.is_global
            require(
                not value or (found is not None and is_near and 0 < int(found[2]) < 65_536),
                f"cache.{name}",
                "must be like tcp://127.0.0.1:5557, with an address of this machine on loopback or a private network:"
                " events hold the tokens of prompts, and whoever can connect may read them",
            )
