"""Two servers and a real redis-server: a conversation whose turns go to another server each time.

Tiny random models, dense, windowed and hybrid. Each turn computes what is new and little more, and the answers are
those of one server without a cache. An agent's turns overlap: the next request holds the answer of the one before.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.effort import some_of
from tests.support.http.replay.replay import Answer, Replay, cacheless_server, cairn_server, some_tokens
from tests.support.http.servers.fake_service import wait_until
from tests.support.mlx.small_demos import SMALL_DEMO, SMALL_HYBRID, write_small_demos
from tests.support.mlx.tiny_models import write_folder
from tests.support.processes.servers.redis_server import needs_redis, redis_server

pytestmark = [pytest.mark.slow, needs_redis]

MODELS = (SMALL_DEMO, SMALL_HYBRID, "gemma3_text")
NUM_SERVERS, NUM_TURNS = 2, 4
PATIENT = ("--shared-deadline-s", "60")  # that a busy machine may take its time
MOST_BEYOND = 32
WANTED: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}


def wait_until_shared(client: httpx.Client) -> None:
    """Until the shared store has everything that was captured."""

    def is_shared() -> bool:
        stats = client.get("/v1/cache/stats").json()
        shared = stats["shared"]
        return shared["is_available"] and not (stats["queue"]["queued"] or shared["queued"])

    wait_until(is_shared, "the shared store to have everything")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_small_demos(tmp_path_factory.mktemp("models"))
    for name in MODELS[2:]:
        write_folder(name, made / name)
    return made


@pytest.fixture(scope="module")
def clients(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        home = tmp_path_factory.mktemp("fleet")
        redis = stack.enter_context(redis_server(home / "redis"))
        found: list[httpx.Client] = []
        for number in range(NUM_SERVERS):
            own = home / str(number)
            own.mkdir()
            flags = ("--store", str(own / "store"), "--model-dir", str(folder))
            variables = {"CAIRN_STORE__SHARED": redis.url, "OTEL_SDK_DISABLED": "false"}
            found.append(stack.enter_context(cairn_server(own, *flags, *PATIENT, **variables))[1])
        for client in found:
            wait_until_shared(client)
        yield found


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[httpx.Client]:
    with cacheless_server(folder) as client:
        yield client


def converse(clients: list[httpx.Client], model: str, *, is_shared: bool) -> list[Answer]:
    """Each turn at the next server, with the answer so far and something new."""
    replay, prompt, answers = Replay(clients[0], model, **WANTED), some_tokens(700, 1), list[Answer]()
    for turn in range(NUM_TURNS):
        replay.client = clients[turn % len(clients)]
        answers.append(replay.complete(prompt))
        prompt = [*prompt, *answers[-1].output_ids, *some_tokens(40, turn + 2)]
        if is_shared:
            wait_until_shared(replay.client)
    return answers


@pytest.mark.parametrize("model", some_of(MODELS, MODELS[1:]))
def test_a_conversation_that_moves_on_computes_what_is_new(
    model: str, clients: list[httpx.Client], alone: httpx.Client
) -> None:
    moved = converse(clients, model, is_shared=True)
    expected = converse([alone], model, is_shared=False)
    assert [answer.output_ids for answer in moved] == [answer.output_ids for answer in expected]
    beyond = [answer.num_computed - answer.num_new for answer in moved]
    assert max(beyond) <= MOST_BEYOND, beyond
    assert all(answer.num_cached > 600 for answer in moved[1:])


def test_the_tier_is_named(clients: list[httpx.Client]) -> None:
    body = {"model": SMALL_DEMO, "prompt": some_tokens(300, 99), **WANTED}
    first, second = clients[:2]
    first.post("/v1/completions", json=body)
    wait_until_shared(first)
    (told,) = second.post("/v1/cache/explain", json={"model": SMALL_DEMO, "prompt": body["prompt"]}).json()["prompts"]
    header = second.post("/v1/completions", json=body).headers["x-cairn-cache"]
    assert f"; shared={told['shared_tokens']};" in header
    assert told["shared_tokens"] == 299
    assert 'cairn_shared_records_total{cairn_operation="read",cairn_outcome="read"' in second.get("/metrics").text
