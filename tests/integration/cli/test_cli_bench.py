"""`cairn bench` against our own server and against one that is not ours."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from adapters.fake.options import FakeOptions
from interfaces.cli.bench.allowance import Spent
from interfaces.cli.bench.prompts import Message
from interfaces.cli.bench.report import Report
from interfaces.cli.bench.reuse import CANCELLED, COLD, EDIT, PAUSED, REPEAT, TURN, Reuse, ReuseOptions
from interfaces.cli.bench.run import Bench, BenchPlan
from interfaces.cli.bench.target import BenchFailed
from interfaces.cli.bench.timeline import Timeline
from interfaces.cli.main import app
from tests.support.http.fake_service import fake_service
from tests.support.http.foreign_server import foreign_server
from tests.support.http.key_argument import key_argument

SMALL = ReuseOptions(prompt_tokens=1200, reply_tokens=4, rounds=2, num_users=3, pause_s=5.0, seed=1)


def measured(plan: BenchPlan, key: str | None = None) -> tuple[Report, list[float], int]:
    """The report, what was waited for, and how many requests were told of."""
    waited: list[float] = []
    asked = 0

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    def count(number: int) -> None:
        nonlocal asked
        asked += number

    bench = Bench(plan, key, sleep, count)
    asyncio.run(bench.run())
    return bench.report(), waited, asked


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_our_own_server_reuses_what_it_says() -> None:
    with fake_service(FakeOptions(eos_every=0), reuses=True) as service:
        plan = BenchPlan(service.base_url, service.model, SMALL, streams=(1, 3), tokens=12)
        report, waited, asked = measured(plan)
    reused = {one.name: one.cached_tokens for one in report.scenarios}
    prompts = {one.name: one.prompt_tokens for one in report.scenarios}
    # A toy model may well begin to answer before anybody can leave.
    assert {one.name for one in report.scenarios if one.note} <= {CANCELLED}
    assert reused[COLD] == [0, 0]
    for name in (REPEAT, PAUSED):
        assert reused[name] == [(count or 0) - 1 for count in prompts[name]]
    for first, turn, edit in zip(*(reused[name] for name in (REPEAT, TURN, EDIT)), strict=True):
        assert first is not None
        assert turn is not None
        assert edit is not None
        assert turn > first * 0.9
        assert first * 0.3 < edit < first * 0.7
    assert all(1000 < (count or 0) < 1500 for count in prompts[COLD])
    assert len(report.scenarios) == 7
    assert [(one.num_streams, one.num_tokens, len(one.ttft_s)) for one in report.streams] == [(1, 12, 1), (3, 36, 3)]
    assert asked >= plan.num_asked - 4
    assert 5.0 in waited
    assert not report.is_cut


class ScriptedTarget:
    """Answers after a second; whoever leaves before `begins_s` has seen nothing yet."""

    def __init__(self, begins_s: float) -> None:
        self.begins_s = begins_s
        self.asked: list[tuple[str, float | None]] = []

    async def ask(
        self, messages: Sequence[Message], max_tokens: int, estimate: int, leave_after_s: float | None = None
    ) -> Timeline:
        self.asked.append((messages[-1]["content"], leave_after_s))
        has_left = leave_after_s is not None and leave_after_s < self.begins_s
        return Timeline(0.0, first_token_s=1.0, token_s=[] if has_left else [1.0], text="so")

    async def ask_together(
        self, prompts: Sequence[Sequence[Message]], max_tokens: int, estimate: int
    ) -> list[Timeline]:
        return [await self.ask(messages, max_tokens, estimate) for messages in prompts]


@pytest.mark.parametrize(
    ("begins_s", "left_after_s", "num_timed"), [(2.0, [0.6], 1), (0.5, [0.6, 0.4], 1), (0.0, [0.6, 0.4, 0.2], 0)]
)
def test_who_is_left_had_not_begun_to_answer(begins_s: float, left_after_s: list[float], num_timed: int) -> None:
    async def sleep(_seconds: float) -> None:
        pass

    target = ScriptedTarget(begins_s)
    reuse = Reuse(target, replace(SMALL, rounds=1), sleep)
    asyncio.run(reuse.run())
    found = reuse.scenarios[CANCELLED]
    assert [after for _, after in target.asked if after is not None] == pytest.approx(left_after_s)
    assert len(found.ttft_s) == num_timed
    assert ("begin too soon" in found.note) is not bool(num_timed)
    last_left = max(index for index, (_, after) in enumerate(target.asked) if after is not None)
    assert (target.asked[last_left + 1] == (target.asked[last_left][0], None)) is bool(num_timed)


def test_a_foreign_server_is_asked_for_what_it_knows() -> None:
    with foreign_server(["theirs"], tells_usage=False) as server:
        report, _, _ = measured(BenchPlan(server.url, reuse=SMALL, streams=(2,), tokens=8))
    assert report.model == "theirs"
    assert {count for one in report.scenarios for count in one.cached_tokens} == {None}
    assert not report.ignores_eos
    assert sum("ignore_eos" in body for body in server.seen) == 1  # asked once, never again
    assert report.streams[0].num_tokens == 8  # its chunks, for it does not count


def test_tokens_are_told_of_where_there_are_several_in_a_chunk() -> None:
    with foreign_server(["theirs"]) as server:
        report, _, _ = measured(BenchPlan(server.url, reuse=replace(SMALL, rounds=0), streams=(1,), tokens=8))
    assert report.scenarios == []
    assert (report.streams[0].num_tokens, report.streams[0].tokens_a_chunk) == (8, 2.0)


def test_it_stops_at_what_it_may_spend() -> None:
    with foreign_server(["theirs"]) as server:
        plan = BenchPlan(server.url, reuse=SMALL, streams=(1,), tokens=8, max_tokens=3000)
        report, _, _ = measured(plan)
        assert len(server.seen) < 40
    by_name = {one.name: one for one in report.scenarios}
    assert len(by_name[COLD].ttft_s) >= 1
    assert "--max-tokens of 3,000 is used up" in by_name["3 share a system prompt"].note
    assert report.num_tokens <= 3000


def test_a_server_that_may_not_be_asked_at_all() -> None:
    with foreign_server(["theirs"]) as server, pytest.raises(Spent):
        measured(BenchPlan(server.url, reuse=SMALL, max_tokens=10))
    with foreign_server([]) as server, pytest.raises(BenchFailed, match="lists no model"):
        measured(BenchPlan(server.url, reuse=SMALL))
    with foreign_server(["one", "two"]) as server, pytest.raises(BenchFailed, match="--model: one, two"):
        measured(BenchPlan(server.url, reuse=SMALL))


def test_the_command_prints_a_table_or_data() -> None:
    with foreign_server(["theirs"], key="hunter2") as server:
        arguments = (f"{server.url}/v1/", "--only", "decode", "--streams", "1", "--tokens", "8")
        shown = run(*arguments, *key_argument("hunter2"))
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.splitlines()[0] == f"theirs at {server.url}"
        assert [line.split()[0] for line in shown.stdout.splitlines()[2:4]] == ["streams", "1"]
        data = json.loads(run(*arguments, "--json", *key_argument("hunter2")).stdout)
        assert data["decode"][0]["num_tokens"] == 8
        assert data["settings"]["max_time_s"] == 600.0
        assert "hunter2" not in json.dumps(data)


def test_what_goes_wrong_is_said_in_one_line() -> None:
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
        (("127.0.0.1:8000",), "is no address: write http://host:port"),
        (("http://127.0.0.1:8000", "--streams", "1,x"), "is no list of numbers"),
        (("http://127.0.0.1:8000", "--only", "everything"), "--only must be"),
    ],
)
def test_what_cannot_be_asked_for(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_key_of_somebody_else_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    with foreign_server(["theirs"], key="hunter2") as server:
        assert "status 401" in run(server.url, "--only", "decode", "--streams", "1", "--tokens", "8").stderr
