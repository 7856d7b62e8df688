"""`cairn bench` against our own server and against one that is not ours."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from typer.testing import CliRunner, Result

from adapters.fake.options import FakeOptions
from interfaces.cli.bench.client import BenchFailed, Message, Target, Timeline, new_client
from interfaces.cli.bench.scenarios import CANCELLED, COLD, EDIT, PAUSED, REPEAT, TURN, Bench, Options, Scenario
from interfaces.cli.main import app
from tests.support.http.key_argument import key_argument
from tests.support.http.servers.fake_service import fake_service
from tests.support.http.servers.foreign_server import foreign_server

SMALL = Options(prompt_tokens=1200, rounds=2, users=3, pause_s=5.0, streams=(), tokens=8)


class Run:
    """One run on a server: its scenarios, the target, the pauses and the number of requests that were reported."""

    def __init__(self, url: str, options: Options, model: str = "") -> None:
        self.waited: list[float] = []
        self.num_asked = 0
        asyncio.run(self._measure(url, options, model))

    async def _measure(self, url: str, options: Options, model: str) -> None:
        async def sleep(seconds: float) -> None:
            self.waited.append(seconds)

        def count(number: int) -> None:
            self.num_asked += number

        async with new_client(None, is_local=True) as client:
            self.target = Target(client, url, model)
            bench = Bench(self.target, options, sleep, count, seed=1)
            await bench.run()
        self.scenarios: dict[str, Scenario] = bench.scenarios


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_our_own_server_reuses_what_it_says() -> None:
    with fake_service(FakeOptions(eos_every=0), reuses=True) as service:
        options = replace(SMALL, streams=(1, 3), tokens=12)
        run = Run(service.base_url, options, service.model)
    found = run.scenarios
    # A toy model may well begin to answer before anybody can leave.
    assert {one.name for one in found.values() if one.note} <= {CANCELLED}
    assert found[COLD].cached_tokens == [0, 0]
    for name in (REPEAT, PAUSED):
        assert found[name].cached_tokens == [(count or 0) - 1 for count in found[name].prompt_tokens]
    for first, turn, edit in zip(*(found[name].cached_tokens for name in (REPEAT, TURN, EDIT)), strict=True):
        assert first is not None
        assert turn is not None
        assert edit is not None
        assert turn > first * 0.9
        assert first * 0.3 < edit < first * 0.7
    assert all(1000 < (count or 0) < 1500 for count in found[COLD].prompt_tokens)
    streams = [found["1 streams"], found["3 streams"]]
    assert [(one.output_tokens, len(one.ttft_s)) for one in streams] == [(12, 1), (36, 3)]
    assert run.num_asked >= options.num_requests - 4
    assert 5.0 in run.waited


class ScriptedTarget:
    """Answers after a second; a client that leaves before `begins_s` has seen nothing yet."""

    def __init__(self, begins_s: float) -> None:
        self.begins_s = begins_s
        self.asked: list[tuple[str, float | None]] = []

    async def choose_model(self) -> None:
        return

    async def ask(self, messages: Sequence[Message], max_tokens: int, leave_after_s: float | None = None) -> Timeline:
        self.asked.append((messages[-1]["content"], leave_after_s))
        has_left = leave_after_s is not None and leave_after_s < self.begins_s
        return Timeline(0.0, first_token_s=1.0, token_s=[] if has_left else [1.0], text="so")

    async def ask_together(self, prompts: Sequence[Sequence[Message]], max_tokens: int) -> list[Timeline]:
        return [await self.ask(messages, max_tokens) for messages in prompts]


@pytest.mark.parametrize(
    ("begins_s", "left_after_s", "num_timed"), [(2.0, [0.6], 1), (0.5, [0.6, 0.4], 1), (0.0, [0.6, 0.4, 0.2], 0)]
)
def test_a_client_leaves_before_the_answer_begins(begins_s: float, left_after_s: list[float], num_timed: int) -> None:
    async def sleep(_seconds: float) -> None:
        pass

    target = ScriptedTarget(begins_s)
    bench = Bench(cast(Any, target), replace(SMALL, rounds=1), sleep, lambda _: None, seed=1)
    asyncio.run(bench.run())
    found = bench.scenarios[CANCELLED]
    assert [after for _, after in target.asked if after is not None] == pytest.approx(left_after_s)
    assert len(found.ttft_s) == num_timed
    assert ("begin before" in found.note) is not bool(num_timed)
    last_left = max(index for index, (_, after) in enumerate(target.asked) if after is not None)
    assert (target.asked[last_left + 1] == (target.asked[last_left][0], None)) is bool(num_timed)


def test_a_foreign_server_is_asked_for_what_it_knows() -> None:
    with foreign_server(["theirs"], tells_usage=False) as server:
        run = Run(server.url, replace(SMALL, streams=(2,)))
    assert run.target.model == "theirs"
    assert {count for one in run.scenarios.values() for count in one.cached_tokens} == {None}
    assert not run.target.ignores_eos
    assert sum("ignore_eos" in body for body in server.seen) == 1  # asked once, never again
    assert run.scenarios["2 streams"].output_tokens == 8  # its chunks, for it does not count


def test_several_tokens_in_a_chunk_are_counted() -> None:
    with foreign_server(["theirs"]) as server:
        found = Run(server.url, replace(SMALL, rounds=0, streams=(1,))).scenarios
    assert [(one.output_tokens, one.tokens_a_chunk) for one in found.values()] == [(8, 2.0)]


def test_a_server_without_a_model_to_choose() -> None:
    with foreign_server([]) as server, pytest.raises(BenchFailed, match="lists no model"):
        Run(server.url, SMALL)
    with foreign_server(["one", "two"]) as server, pytest.raises(BenchFailed, match="--model: one, two"):
        Run(server.url, SMALL)


def test_the_command_prints_a_table_or_data() -> None:
    with foreign_server(["theirs"], key="hunter2") as server:
        arguments = (f"{server.url}/v1/", "--only", "decode", "--streams", "1", "--tokens", "8")
        shown = run(*arguments, *key_argument("hunter2"))
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.splitlines()[0] == f"theirs at {server.url}"
        assert [line.split()[0] for line in shown.stdout.splitlines()[1:3]] == ["scenario", "1"]
        data = json.loads(run(*arguments, "--json", *key_argument("hunter2")).stdout)
        assert data["scenarios"][0]["output_tokens"] == 8
        assert data["settings"]["tokens"] == 8
        assert any("ignore_eos" in note for note in data["notes"])
        assert "hunter2" not in json.dumps(data)


def test_a_failure_is_one_line() -> None:
    with foreign_server(["theirs"], key="hunter2") as server:
        refused = run(server.url)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.endswith(
            " answered with status 401: who are you?; give the key in a file with --api-key-file\n"
        )
        unknown = run(server.url, "--model", "other", *key_argument("hunter2"))
        assert unknown.stderr.endswith("status 404: no model other\\x1b[31m\n")
        url = server.url
    gone = run(url, "--model", "theirs")
    assert (gone.exit_code, "failed" in gone.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("127.0.0.1:8000",), "is not an address: write http://host:port"),
        (("http://127.0.0.1:8000", "--streams", "1,x"), "is not a list of numbers"),
        (("http://127.0.0.1:8000", "--only", "everything"), "--only must be"),
    ],
)
def test_invalid_arguments_are_usage_errors(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_key_of_somebody_else_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    with foreign_server(["theirs"], key="hunter2") as server:
        assert "status 401" in run(server.url, "--only", "decode", "--streams", "1", "--tokens", "8").stderr
