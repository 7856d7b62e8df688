"""The blocks of prompts for which a server has memory, as routers count them."""

from collections.abc import Mapping

from adapters.otel.telemetry import RouterFigures
from application.events import MemoryMeasured, ModelLoaded, ModelUnloaded
from domain.ids import ModelId


class KVBlocks:
    """Folded from events, and 0 before them; read by any thread. `usage`: as MemoryLedger.kv_usage, of the last
    measurement. `block_size`: in tokens."""

    def __init__(self, routers: RouterFigures) -> None:
        self.usage = 0.0
        self.block_size = routers.block_size
        self._room_bytes = 0
        self._token_bytes = {ModelId(routers.default_model): 0} if routers.default_model else {}

    def measured(self, event: MemoryMeasured) -> None:
        self.usage, self._room_bytes = event.ledger.kv_usage, event.ledger.kv_room_bytes or 0

    def loaded(self, event: ModelLoaded) -> None:
        self._token_bytes = {**self._token_bytes, event.id: event.token_bytes}

    def unloaded(self, event: ModelUnloaded) -> None:
        self._token_bytes = {**self._token_bytes, event.id: 0}

    def num_blocks(self) -> Mapping[str, int]:
        """The blocks that have room, by model, as if each were alone; 0 for one that is not loaded."""
        block_bytes = {id: num_bytes * self.block_size for id, num_bytes in self._token_bytes.items()}
        return {id: self._room_bytes // size if size else 0 for id, size in block_bytes.items()}
