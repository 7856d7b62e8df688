"""Memory of a server without work goes back to the system, and nothing of an ended request waits for Python's
collector: it comes by the number of objects, of which a long prompt has few, and not at all while nothing runs."""

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from adapters.fake.options import FakeOptions
from adapters.mlx.engine import MlxEngine
from application.events import PressureRelieved
from application.services.prefix.session import PrefixSession
from application.services.token_side.sequence_run import SequenceRun
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.ids import ModelId
from interfaces.http.front.connection import BoundedConnection
from tests.simulation.memory.test_memory_runs import play
from tests.support.http.servers.fake_service import fake_service, wait_until
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

SETTINGS = Settings(
    server=ServerSettings(port=0),
    model=ModelSettings(default=ModelId("fake-attention"), download=False),
    engine=EngineSettings(backend="fake", block_size=16),
    store=StoreSettings(kind="off", hot_tier=ByteSize(num_bytes=1 << 20)),
)


def wait_for_relief(live: LiveService, events: RecordingEvents, number: int) -> None:
    """Looks come as fast as they are asked for."""

    def is_told() -> bool:
        live.service.container.engine().wake()
        told = [event.kind for event in events.of(PressureRelieved)]
        return told.count("clear_cache") >= number

    wait_until(is_told, f"relief {number}")


def test_what_is_cleared_while_nothing_runs_is_given_back() -> None:
    events = RecordingEvents()
    with (
        live_service(SETTINGS, extra_sinks=(events,)) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client,
    ):
        body = {"prompt": "x" * 200, "max_tokens": 2}
        assert client.post("/v1/completions", json=body).status_code == 200
        wait_for_relief(live, events, 1)
        assert client.post("/v1/cache/clear", json={}).json()["hot_records"]
        wait_for_relief(live, events, 2)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def num_alive(*kinds: type) -> int:
    return sum(isinstance(found, kinds) for found in gc.get_objects())


def test_sequences_that_were_forked_preempted_cancelled_or_ended() -> None:
    before = num_alive(SequenceRun, PrefixSession)
    server, _ = play(7)
    assert server.asked
    assert num_alive(SequenceRun, PrefixSession) == before


def test_connections() -> None:
    before = num_alive(BoundedConnection)
    with fake_service(FakeOptions(eos_every=0)) as service:
        assert service.client.post("/v1/completions", json={"prompt": "x" * 100, "max_tokens": 2}).status_code == 200
        service.client.close()
        service.wait_until(lambda: num_alive(BoundedConnection) == before, "the connection to be gone")


class Ring:
    def __init__(self) -> None:
        self.self = self


def test_what_waits_for_the_collector_all_the_same_goes_when_memory_is_given_back() -> None:
    ring = weakref.ref(Ring())
    assert ring() is not None

    def give_back() -> None:
        engine = MlxEngine()
        engine.clear_cache()
        engine.close()

    with ThreadPoolExecutor(1) as compute:  # its streams end with it
        compute.submit(give_back).result()
    assert ring() is None
