"""`cairn top`: what it shows is what the admin API says, at any width; and it outlives the server."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner, Result

from adapters.fake.options import FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.settings import ServerSettings
from interfaces.cli.main import app
from interfaces.cli.running_server import NoAnswer, RunningServer
from interfaces.cli.top.reading import Reading, read
from interfaces.cli.top.screen import Fatal, trouble, watch
from interfaces.cli.top.view import frame
from interfaces.http.admin.overview import OverviewBody
from interfaces.http.admin.requests import RequestListBody
from interfaces.http.answers import body_of
from tests.support.fake_service import FakeService, fake_service
from tests.support.terminal import terminal

URL = "http://127.0.0.1:8000"
KEY = "hunter2"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    options, settings = FakeOptions(eos_every=0), ServerSettings(port=0, api_key=KEY)
    with fake_service(options, settings=settings, reuses=True, store=MemoryBlockStore(1 << 30)) as running:
        running.client.headers["authorization"] = f"Bearer {KEY}"
        body = {"messages": [{"role": "user", "content": "hello " * 200}], "max_tokens": 20}
        for _ in range(2):
            running.client.post("/v1/chat/completions", json=body).raise_for_status()
        running.wait_until_idle()
        # Read once, and kept by a clock that stands: a busy machine may be late with it, and tells none then.
        running.wait_until(lambda: running.client.get("/admin/api/overview").json()["tiers"] is not None, "the tiers")
        yield running


@pytest.fixture
def reading(service: FakeService) -> Reading:
    return asyncio.run(read(RunningServer(service.base_url, KEY)))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["top", *arguments])


def shown(reading: Reading, width: int = 200, height: int | None = None) -> list[str]:
    return [line.plain for line in frame(reading, URL, width, height)]


def line_of(lines: list[str], label: str) -> str:
    return next(line for line in lines if line.startswith(label))


def with_open(reading: Reading, num_open: int) -> Reading:
    """As if the last request were in the middle of its prompt, so many times."""
    one = replace(reading.requests.ended[0], end=None, stage="prefill", prompt_tokens=1000, done_tokens=250)
    return Reading(reading.overview, replace(reading.requests, open_count=num_open, open=[one] * num_open))


def test_it_shows_what_the_api_says(reading: Reading) -> None:
    lines = shown(reading)
    assert lines[0].startswith(f"cairn 9.9 {URL}  ready")
    assert "0 running, 0 waiting" in line_of(lines, "requests")
    assert "(2 in 5m)" in line_of(lines, "TTFT")
    tiers = reading.overview.tiers
    assert tiers is not None
    assert f"{tiers.hot.blocks:,} blocks, {tiers.hot.snapshots:,} snapshots" in line_of(lines, "hot tier")
    assert line_of(lines, "store").count("of 1 GiB") == 1
    rows = [line.split() for line in lines[lines.index("") + 2 :]]
    for row, ended in zip(rows, reading.requests.ended, strict=True):
        assert row[:2] == [ended.id, "length"]
        assert f"{sum(ended.reused.values()):,}" in row


def test_open_requests_show_how_far_they_are(reading: Reading) -> None:
    lines = shown(with_open(reading, 1))
    assert "###.......  25%" in lines[lines.index("") + 2].replace("##........", "###.......")
    waiting = replace(reading.requests.ended[0], end=None, stage="queue", waits_for="memory")
    queued = Reading(reading.overview, replace(reading.requests, open=[waiting]))
    assert "waits for memory" in shown(queued)[lines.index("") + 2]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_it_fits_any_terminal(reading: Reading, width: int) -> None:
    lines = shown(with_open(reading, 3), width)
    assert max(map(len, lines)) <= width
    assert any(line.startswith(reading.requests.ended[0].id[: width // 4]) for line in lines)
    for height in (5, 15, 30):
        assert len(shown(with_open(reading, 40), width, height)) <= max(height, len(shown(reading, width, 0)))


def test_nothing_a_client_chose_is_a_control_code(reading: Reading) -> None:
    odd = replace(reading.requests.ended[0], id="a\x1b[2J\nb", model="m\x07")
    lines = shown(Reading(reading.overview, replace(reading.requests, ended=[odd])))
    assert all(line.isprintable() for line in lines)


FIXED = ("object", "status", "stage", "kind", "explanation")
"""What the bodies take no other text in."""

MAPS = ("waiting_for", "tokens_per_s", "faults", "dropped", "hit_rate", "reused")


def hostile(value: Any, number: float) -> Any:
    """The same shape with every text a control code and every number an absurd one."""
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value)
        odd = {name: one if name in FIXED else hostile(one, number) for name, one in named.items()}
        return odd | {name: {"\x1b[31m": int(number)} for name in MAPS if odd.get(name) is not None}
    if isinstance(value, list):
        return [hostile(one, number) for one in cast("list[Any]", value)]
    if isinstance(value, str):
        return "\x1b[2J\n" * 300
    return value if isinstance(value, bool) or value is None else type(value)(number)


@pytest.mark.parametrize("number", [-1e17, 1e19, 0])
def test_whatever_answers_the_terminal_gets_lines(reading: Reading, number: float) -> None:
    said = hostile(reading.as_data(), number)
    odd = Reading(body_of(said["overview"], OverviewBody), body_of(said["requests"], RequestListBody))
    for width in (20, 200):
        lines = shown(odd, width)
        assert all(line.isprintable() for line in lines)
        assert max(map(len, lines)) <= width


def test_trouble_is_said_in_words_and_not_in_colour_alone(reading: Reading) -> None:
    engine = replace(
        reading.overview.health.engine, status="stuck", stuck_in="prefill", stuck_s=95.0, requests=["chatcmpl-1"]
    )
    health = replace(reading.overview.health, status="not ready", problem="the engine is stuck", engine=engine)
    stuck = Reading(replace(reading.overview, health=health), reading.requests)
    console = Console(force_terminal=True, no_color=True, width=100)
    with console.capture() as capture:
        for line in frame(stuck, URL, 100, None):
            console.print(line)
    drawn = capture.get()
    assert "not ready (the engine is stuck)" in drawn
    assert "stuck in prefill for 1m 35s: chatcmpl-1" in drawn
    assert "\x1b[31m" not in drawn


def test_without_a_terminal_it_is_one_snapshot(service: FakeService) -> None:
    for arguments in ((), ("--once",)):
        result = run("--url", service.base_url, "--api-key", KEY, *arguments)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"cairn 9.9 {service.base_url}  ready")
        assert "\x1b" not in result.stdout
    data = json.loads(run("--url", service.base_url, "--api-key", KEY, "--json").stdout)
    said = service.client.get("/admin/api/requests").json()
    assert data["requests"] == said
    assert set(data["overview"]) == set(service.client.get("/admin/api/overview").json())


def test_who_may_not_look_is_told(service: FakeService) -> None:
    result = run("--url", service.base_url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "an API key is required" in result.stderr


def ignore(_last: Reading | None, _problem: str, _age_s: float) -> None:
    """Nobody looks."""


async def at_once(_stop: asyncio.Event) -> None:
    await asyncio.sleep(0)


def test_it_outlives_the_server(reading: Reading) -> None:
    """Three looks: it answers, it is away, it is back."""
    answers: list[Reading | NoAnswer] = [reading, NoAnswer("no server answers"), reading]
    seen: list[tuple[bool, str, float]] = []
    now_s = 0.0

    async def look() -> Reading:
        answer = answers.pop(0)
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    async def wait(stop: asyncio.Event) -> None:
        nonlocal now_s
        now_s += 7.0
        if not answers:
            stop.set()

    async def watched() -> None:
        def show(last: Reading | None, problem: str, age_s: float) -> None:
            seen.append((last is not None, problem, age_s))

        await watch(look, show, asyncio.Event(), wait, lambda: now_s)

    asyncio.run(watched())
    assert seen == [(True, "", 0.0), (True, "no server answers", 7.0), (True, "", 0.0)]
    (told,) = trouble("no server answers", 7.0, has_reading=True)
    assert told.plain == "no server answers; what follows is 7s old"
    assert not trouble("", 0.0, has_reading=True)


def test_who_waits_for_an_answer_can_leave() -> None:
    async def watched() -> None:
        stop, asked = asyncio.Event(), asyncio.Event()

        async def look() -> Reading:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def leave() -> None:
            await asked.wait()
            stop.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(leave())
            group.create_task(watch(look, ignore, stop, at_once, lambda: 0.0))

    asyncio.run(watched())


def test_a_refusal_at_the_start_ends_it() -> None:
    async def refused() -> Reading:
        raise NoAnswer("the API key is not valid", http_status=401)

    async def watched() -> None:
        await watch(refused, ignore, asyncio.Event(), at_once, lambda: 0.0)

    with pytest.raises(Fatal, match="not valid"):
        asyncio.run(watched())


def test_on_a_terminal_it_is_live_until_q(service: FakeService, tmp_path: Path) -> None:
    arguments = ("top", "--url", service.base_url, "--api-key", KEY, "--interval", "0.2")
    with terminal(tmp_path, arguments) as live:
        live.read_until("q quits")
        live.read_until("ready")  # once more
        live.press(b"xq")
        assert live.wait() == 0
        live.read_until("\x1b[?1049l")  # the screen there was before
        assert live.is_as_before()
