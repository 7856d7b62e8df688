"""Nothing of a request that has ended waits for Python's collector: it comes by the number of objects, of which a long
prompt has few, and not at all while nothing runs."""

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapters.fake.options import FakeOptions
from adapters.mlx.engine import MlxEngine
from application.services.prefix.cached_sequence import CachedSequence
from application.services.token_side.sequence_run import SequenceRun
from interfaces.http.front.connection import BoundedConnection
from tests.simulation.test_memory_runs import play
from tests.support.http.servers.fake_service import fake_service


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def num_alive(*kinds: type) -> int:
    return sum(isinstance(found, kinds) for found in gc.get_objects())


def test_sequences_that_were_forked_preempted_cancelled_or_ended() -> None:
    before = num_alive(SequenceRun, CachedSequence)
    server, _ = play(7)
    assert server.asked
    assert num_alive(SequenceRun, CachedSequence) == before


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
