"""The progress of a warm-up, a download and a load, as the commands that wait for them show it."""

import asyncio
import json
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from adapters.fake.options import FakeOptions
from application.ports.engine import LoadProgress
from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed
from domain.ids import ModelId, SequenceId
from interfaces.cli.client.running_server import NoAnswer, RunningServer, warmed
from interfaces.cli.server.loading import LoadStages
from interfaces.cli.terminal.progress import Unit
from tests.integration.engine.test_model_pool import A, B, Bench
from tests.support.http.servers.fake_service import fake_service
from tests.support.patience import PATIENCE_S

BODY = json.dumps({"prompt": "a fresh one " * 100}).encode()


class Bars:
    """Stands in for `progress`: what was opened, how far each came, and what was closed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int | None]] = []
        self.num_open = 0
        self.moved = threading.Event()

    @contextmanager
    def __call__(self, what: str, total: int | None, unit: Unit, *, quiet: bool) -> Generator["Bars"]:
        self._what = what
        self.num_open += 1
        try:
            yield self
        finally:
            self.num_open -= 1

    def reach(self, done: int, total: int | None) -> None:
        self.seen.append((self._what, done, total))
        if done:
            self.moved.set()

    def advance(self, count: int) -> None:
        raise AssertionError("bytes in all are known here")


def test_a_warm_up_shows_how_far_the_prompt_is() -> None:
    bars = Bars()

    def wait_to_be_seen(operation: str, _id: SequenceId | None, count: int) -> None:
        if operation == "prefill" and count == 2:
            assert bars.moved.wait(PATIENCE_S)

    with fake_service(FakeOptions(hook=wait_to_be_seen), reuses=True) as service:
        server = RunningServer(service.base_url)
        answer = asyncio.run(warmed(server, BODY, quiet=False, poll_interval_s=0.01, opener=bars))
    assert "prompts" in answer
    assert {what for what, _, _ in bars.seen} == {"warming"}
    assert {total for _, _, total in bars.seen} == {1200}
    assert any(0 < done < 1200 for _, done, _ in bars.seen)
    assert bars.num_open == 0


class Scripted:
    """Is warm once it was looked at often enough; each look gets the next answer. On the event loop."""

    def __init__(self, looks: list[dict[str, object] | NoAnswer]) -> None:
        self.looks = looks
        self.warm = asyncio.Event()

    async def ask(self, path: str, body: bytes | None = None, timeout_s: float | None = None) -> dict[str, object]:
        if path == "/v1/cache/warm":
            await self.warm.wait()
            return {"prompts": []}
        answer = self.looks.pop(0)
        if not self.looks:
            self.warm.set()
        if isinstance(answer, NoAnswer):
            raise answer
        return answer


def look(*requests: tuple[str, str, int]) -> dict[str, object]:
    names = "id", "operation", "done_tokens"
    return {"open": [dict(zip(names, one, strict=True)) | {"prompt_tokens": 100} for one in requests]}


def seen_of(looks: list[dict[str, object] | NoAnswer]) -> list[tuple[str, int, int | None]]:
    bars = Bars()

    async def ask() -> None:
        await warmed(Scripted(looks), BODY, quiet=False, poll_interval_s=0.0, opener=bars)

    asyncio.run(ask())
    return bars.seen


def test_prompts_that_are_warm_stay_so() -> None:
    looks: list[dict[str, object] | NoAnswer] = [
        look(("a", "warmCache", 10), ("z", "createChatCompletion", 99)),
        NoAnswer("busy"),
        look(("b", "warmCache", 40)),
    ]
    assert seen_of(looks) == [("warming", 10, 100), ("warming", 10, 100), ("warming", 140, 200)]


def test_a_refused_look_is_not_repeated() -> None:
    async def ask() -> None:
        server = Scripted([NoAnswer("no admin", http_status=403)])
        await warmed(server, BODY, quiet=False, poll_interval_s=0.0, opener=Bars())

    asyncio.run(ask())  # a second look would find no answer


def test_a_download_and_a_load_are_a_bar_each() -> None:
    bars = Bars()
    with ExitStack() as opened:
        stages = LoadStages("org/model", opened, bars)
        stages.show(None, None)
        stages.show(DownloadProgress(5, 20), None)
        stages.show(DownloadProgress(10, 20), LoadProgress(ModelId("other"), 1, 2))
        stages.show(None, LoadProgress(ModelId("org/model"), 3, 9))
        assert bars.num_open == 1
    assert bars.num_open == 0
    assert bars.seen == [
        ("downloading org/model", 5, 20),
        ("downloading org/model", 10, 20),
        ("loading org/model", 3, 9),
    ]


@pytest.mark.parametrize("error", [None, "no such layer"])
def test_progress_of_a_load_is_shown(error: str | None) -> None:
    seen: list[LoadProgress | None] = []

    def note(operation: str, _id: SequenceId | None, _count: int) -> None:
        if operation == "load_piece":
            seen.append(bench.loop.status().loading)

    bench = Bench(max_loaded=2, options={B: FakeOptions(hook=note, load_pieces=3, load_error=error)})

    async def work() -> None:
        await bench.use(A)
        assert bench.loop.status().loading is None
        if error is None:
            await bench.use(B)
        else:
            with pytest.raises(ModelLoadFailed, match=error):
                await bench.use(B)
        assert bench.loop.status().loading is None

    bench.run(work)
    assert [one.id for one in seen if one is not None] == [B] * 3
