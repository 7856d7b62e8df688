"""A process in which everything that a store can hang at hangs, and that ends all the same: `memory` or `lmdb DIR`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from adapters.fake import FakeClock, FakeModel, FakeOptions
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import BlockStore
from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.no_reuse import NoReuse
from application.services.prefix.session import PrefixSession
from application.settings import CacheSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.model_card import ModelSource
from domain.prefix.record import HostPayload
from domain.scheduling.step_values import StepLimits
from interfaces.composition.cache import CacheTiers
from tests.support.stores.cache_driver import VOCAB
from tests.support.stores.faulty_stores import READS, HangingStore
from tests.support.telemetry.recording import RecordingEvents

HUNG = Event()
NEVER = Event()


class HangingCodec(ZstdStateCodec):
    """Hangs where a thread waits for a page of the file."""

    def decode(self, frame: Sequence[memoryview]) -> HostPayload:
        HUNG.set()
        NEVER.wait()
        return super().decode(frame)


def main() -> None:
    hanging = HangingStore()
    clock, events = FakeClock(), RecordingEvents()
    store: BlockStore = hanging  # type: ignore[assignment]
    if sys.argv[1] == "lmdb":
        store = LmdbBlockStore(Path(sys.argv[2]), LmdbOptions(16 << 20), HangingCodec(), events, clock)
    settings = Settings(
        cache=CacheSettings(live_states=ByteSize(num_bytes=0)), store=StoreSettings(hot_tier=ByteSize(num_bytes=0))
    )
    tiers = CacheTiers(settings, StepLimits(1, 256, 256), store, events, clock)
    model = FakeModel(ModelSource(ModelId("toy"), "p"), FakeOptions(vocab_size=VOCAB))
    tiers.prefix_cache.attach(model.description)

    def begin(id: int) -> PrefixSession | NoReuse:
        model.open(SequenceId(id))
        prompt = EncodedPrompt.of_text(tuple(range(600)))
        sequence = tiers.prefix_cache.begin(SequenceId(id), RequestId(f"r{id}"), ModelId("toy"), prompt)
        sequence.prepare()
        return sequence

    sequence = begin(0)
    while not sequence.poll():
        pass
    sequence.restore(model)
    model.prefill(SequenceId(0), list(range(512)))
    sequence.prefilled(model, 512)
    assert tiers.writer is not None
    assert tiers.writer.flush(20)
    sequence.end(model, [])
    if sys.argv[1] == "memory":
        hanging.hang((*READS, "put", "delete", "touch", "flush", "close"))
    sequence = begin(1)
    while not (HUNG.is_set() or hanging.entered["get"]):
        sequence.poll()
    tiers.close(0.1)
    faults = [event.where for event in events.events if type(event).__name__ == "FaultObserved"]
    sys.stdout.write(" ".join(faults))


if __name__ == "__main__":
    main()
