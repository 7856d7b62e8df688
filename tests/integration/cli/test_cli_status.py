"""`cairn status` shows what the admin API says, at any width and whatever the server answers."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from dataclasses import replace as replace_of
from typing import Any, cast

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from adapters.fake.options import FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.ports.engine import EngineStatus
from application.settings import ServerSettings
from domain.byte_size import format_bytes
from domain.memory.ledger import MemoryLedger, MemoryLimits
from interfaces.cli.client.running_server import RunningServer
from interfaces.cli.commands.status_screen import Status, lines, read
from interfaces.cli.main import app
from interfaces.http.native.admin import OverviewBody, SavedBody
from interfaces.http.native.bodies import body_of, data_of, memory_body
from interfaces.http.native.health import LoadingBody
from interfaces.http.native.requests import RequestListBody
from tests.support.http.clients import key_argument
from tests.support.http.servers.fake_service import FakeService, fake_service

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
        # Read once, and kept by a clock that stands: a busy machine may be late with it, and reports none then.
        running.wait_until(lambda: running.client.get("/admin/api/overview").json()["tiers"] is not None, "the tiers")
        yield running


@pytest.fixture
def reading(service: FakeService) -> Status:
    return asyncio.run(read(RunningServer(service.base_url, KEY)))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["status", *arguments])


def shown(reading: Status, width: int = 200) -> list[str]:
    return [line.plain for line in lines(reading, URL, width)]


def line_of(found: list[str], label: str) -> str:
    return next(line for line in found if line.startswith(label))


def with_open(reading: Status, num_open: int) -> Status:
    """As if the last request were in the middle of its prompt, so many times."""
    one = replace(reading.requests.ended[0], end=None, stage="prefill", prompt_tokens=1000, done_tokens=250)
    return Status(reading.overview, replace(reading.requests, open_count=num_open, open=[one] * num_open))


def test_it_shows_what_the_api_says(reading: Status) -> None:
    found = shown(reading)
    assert found[0].startswith(f"cairn 9.9 {URL}  ready")
    assert "0 running, 0 waiting" in line_of(found, "requests")
    assert "(2 in 5m)" in line_of(found, "TTFT")
    tiers = reading.overview.tiers
    assert tiers is not None
    assert f"{tiers.hot.num_blocks:,} blocks, {tiers.hot.num_snapshots:,} snapshots" in line_of(found, "hot tier")
    assert line_of(found, "store").count("of 1 GiB") == 1
    rows = [line.split() for line in found[found.index("") + 2 :]]
    for row, ended in zip(rows, reading.requests.ended, strict=True):
        assert row[:2] == [ended.id, "length"]
        assert f"{sum(ended.reused.values()):,}" in row


def test_the_time_that_reuse_saved_is_shown_by_tier(reading: Status) -> None:
    saved = SavedBody({"live": 0.0, "hot": 60.0, "store": -2.5}, {"live": 0.0, "hot": 0.25, "store": 0.0}, 1200)
    figures = replace(reading.overview.figures, saved=saved)
    found = shown(Status(replace(reading.overview, figures=figures), reading.requests))
    text = "1h: 250.0ms hot  since start: 1m 00s hot, -2.50s store  (1,200 tokens not priced)"
    assert line_of(found, "saved").endswith(text)


def test_open_requests_show_how_far_they_are(reading: Status) -> None:
    found = shown(with_open(reading, 1))
    assert "prefill  25%" in found[found.index("") + 2]
    waiting = replace(reading.requests.ended[0], end=None, stage="queue", waits_for="memory")
    queued = Status(reading.overview, replace(reading.requests, open=[waiting]))
    assert "waits for memory" in shown(queued)[found.index("") + 2]


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (LoadingBody("m\x07", "measuring", None, None), "measuring m\\x07"),
        (LoadingBody("m", "reading", 0.25, 75), "reading m  25%  1m 15s left"),
    ],
)
def test_a_load_shows_how_far_it_is(reading: Status, load: LoadingBody, text: str) -> None:
    health = reading.overview.health
    loading = replace(health, engine=replace(health.engine, loading=load))
    found = shown(Status(replace(reading.overview, health=loading), reading.requests))
    assert line_of(found, "engine").endswith(text)


def test_every_purpose_of_the_ledger_is_shown_against_the_budget_of_the_page(reading: Status) -> None:
    purposes = {one.name for one in fields(MemoryLedger) if one.type is int}
    sizes = {name: 2**30 * number for number, name in enumerate(sorted(purposes), 1)}
    limits = MemoryLimits.of(200 * 2**30)
    status = EngineStatus(
        is_alive=True,
        is_busy=False,
        last_progress_ns=0,
        last_step_ns=0,
        num_waiting=0,
        num_running=0,
        limits=limits,
        ledger=MemoryLedger(**sizes, limits=limits),
    )
    found = shown(Status(replace(reading.overview, memory=memory_body(status)), reading.requests))
    row = found.index(line_of(found, "memory"))
    assert f"of {format_bytes(limits.hard_bytes)}" in found[row]
    assert {part.split()[-2] for part in found[row + 1].split(", ")} == {str(size >> 30) for size in sizes.values()}


def test_a_server_of_an_earlier_release_is_read(reading: Status) -> None:
    said = cast("dict[str, Any]", data_of(reading.overview))
    del said["health"]["engine"]["loading"], said["health"]["engine"]["last_loss"], said["figures"]["saved"]
    known = [line for line in shown(reading) if not line.startswith("saved")]
    assert shown(Status(body_of(said, OverviewBody), reading.requests)) == known


@dataclass(frozen=True, slots=True)
class HalfServer(RunningServer):
    """A server whose overview waits for the gate. `limits`: the bounds on each wait."""

    known: Status = Status()
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    limits: list[float | None] = field(default_factory=list)

    async def ask(self, path: str, body: bytes | None = None, timeout_s: float | None = None) -> dict[str, object]:
        self.limits.append(timeout_s)
        if "overview" not in path:
            return cast("dict[str, object]", data_of(self.known.requests))
        await self.gate.wait()
        return cast("dict[str, object]", data_of(self.known.overview))


def test_what_a_slow_server_has_answered_is_shown_while_the_rest_is_awaited(reading: Status) -> None:
    server, seen = HalfServer(URL, known=reading), list[Status]()

    def show(known: Status) -> None:
        seen.append(known)
        if known.requests is not None:
            server.gate.set()

    whole = asyncio.run(read(server, show=show, tick_s=0.001))
    assert (whole.overview, whole.requests) == (reading.overview, reading.requests)
    assert server.limits == [None, None]
    assert (seen[-1].overview, seen[-1].requests) == (None, reading.requests)
    later = shown(replace_of(seen[-1], overview_s=70.0, requests_s=69.0))
    assert line_of(later, "overview").endswith(f"{URL} has not answered for 1m 10s; Ctrl-C ends the wait")
    assert later[-1] == "read 1m 09s ago"
    assert any(line.startswith(reading.requests.ended[0].id) for line in later)


@pytest.mark.parametrize("width", [20, 120])
def test_it_fits_any_terminal(reading: Status, width: int) -> None:
    found = shown(with_open(reading, 3), width)
    assert max(map(len, found)) <= width
    assert any(line.startswith(reading.requests.ended[0].id[: width // 4]) for line in found)


def test_nothing_a_client_chose_is_a_control_code(reading: Status) -> None:
    odd = replace(reading.requests.ended[0], id="a\x1b[2J\nb", model="m\x07")
    found = shown(Status(reading.overview, replace(reading.requests, ended=[odd])))
    assert all(line.isprintable() for line in found)


FIXED = ("object", "status", "stage", "kind", "explanation")
"""Fields whose text is an enum in the bodies."""

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
def test_hostile_values_are_printable_and_fit_the_width(reading: Status, number: float) -> None:
    said = hostile({"overview": data_of(reading.overview), "requests": data_of(reading.requests)}, number)
    odd = Status(body_of(said["overview"], OverviewBody), body_of(said["requests"], RequestListBody))
    for width in (20, 200):
        found = shown(odd, width)
        assert all(line.isprintable() for line in found)
        assert max(map(len, found)) <= width


def test_the_command_prints_one_screen_or_json(service: FakeService) -> None:
    result = run("--url", service.base_url, *key_argument(KEY))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"cairn 9.9 {service.base_url}  ready")
    assert "\x1b" not in result.stdout
    data = json.loads(run("--url", service.base_url, *key_argument(KEY), "--json").stdout)
    said = service.client.get("/admin/api/requests").json()
    assert data["requests"] == said
    assert set(data["overview"]) == set(service.client.get("/admin/api/overview").json())


def test_a_missing_key_is_an_error(service: FakeService) -> None:
    result = run("--url", service.base_url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "an API key is required" in result.stderr
