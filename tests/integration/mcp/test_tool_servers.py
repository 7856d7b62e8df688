"""Tool servers over stdio: both eras, and each way in which a server may misbehave, which has an error of its own."""

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters.mcp.servers import MAX_LIST_BYTES, MAX_TOOLS, McpToolServers
from application.mcp_settings import ToolServerSettings
from application.ports.tool_servers import ServerState, ServerStatus, ToolServers
from domain.errors import ToolCallFailed, ToolNotFound, ToolServerUnavailable
from interfaces.composition.engine_entry import new_event_loop
from tests.support.mcp.fake_servers import FakeToolServers
from tests.support.mcp.fault_server import TOOLS
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
MOST = 4096


def faulty(*traits: str, **settings: Any) -> ToolServerSettings:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.support.mcp import fault_server; "
    launched = ("-c", program + "fault_server.main()", *traits)
    return ToolServerSettings(command=sys.executable, args=launched, **settings)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def served(clock: Clock | None = None, **servers: ToolServerSettings) -> AsyncIterator[McpToolServers]:
    found = McpToolServers(servers, MOST, environment={"SECRET": "s3cret"}, clock=clock or Clock())
    try:
        yield found
    finally:
        await found.close()


def status_of(servers: ToolServers) -> ServerStatus:
    (found,) = servers.status()
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another process tells, by a file
            await asyncio.sleep(0)


@in_loop
async def test_half_of_a_character_in_a_result_becomes_a_mark() -> None:
    async with served(one=faulty("modern")) as servers:
        result = await servers.call("one", "echo", {"text": "a\ud83db"})
        assert (result.parts[0].text, result.structured) == ("a\ufffdb", {"text": "a\ufffdb"})


@pytest.mark.parametrize("era", ["modern", "older"])
@in_loop
async def test_both_eras_list_and_call(era: str) -> None:
    async with served(one=faulty(era, "pages")) as servers:
        tools = await servers.tools("one")
        assert [tool.name for tool in tools] == sorted(TOOLS)
        assert tools[0].full_name == f"one__{tools[0].name}"
        result = await servers.call("one", "echo", {"text": "hello"})
        assert (result.parts[0].text, result.structured, result.is_error) == ("hello", {"text": "hello"}, False)
        status = status_of(servers)
        assert (status.state, status.protocol) == (ServerState.READY, "2026-07-28" if era == "modern" else "2025-06-18")
        assert (status.num_tools, status.num_calls, status.num_failures) == (len(TOOLS), 1, 0)


@in_loop
async def test_the_fake_answers_as_the_client_does() -> None:
    fake = FakeToolServers({"one": ["echo"]})
    async with served(one=faulty("modern", tools=("echo",))) as real:
        for servers in (real, fake):
            assert servers.names() == ("one",)
            assert [tool.full_name for tool in await servers.tools("one")] == ["one__echo"]
            assert (await servers.call("one", "echo", {})).is_error is False
            with pytest.raises(ToolNotFound):
                await servers.call("one", "other", {})
            with pytest.raises(ToolNotFound):
                await servers.tools("none")
            await servers.restart("one")
            assert status_of(servers).state is ServerState.READY


@in_loop
async def test_a_server_gets_what_it_needs_to_run_and_what_its_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAIRN_SERVER__API_KEY", "hidden")
    monkeypatch.setenv("PATH", "/usr/bin")  # a long one would be cut
    async with served(one=faulty("modern", env={"TOKEN": "Bearer ${SECRET}"})) as servers:
        found = json.loads((await servers.call("one", "env", {})).parts[0].text)
        assert found["TOKEN"] == "Bearer s3cret"
        assert "PATH" in found
        assert not [name for name in found if name.startswith("CAIRN")]


@in_loop
async def test_a_variable_that_is_not_set_is_named_and_nothing_is_started() -> None:
    async with served(one=faulty("modern", env={"TOKEN": "${ABSENT}"})) as servers:
        with pytest.raises(ToolServerUnavailable, match=r"env\.TOKEN names the variable ABSENT"):
            await servers.tools("one")
        assert status_of(servers).num_starts == 1


@in_loop
async def test_a_call_that_hangs_ends_at_its_limit_and_others_go_on() -> None:
    async with served(one=faulty("modern", timeout_s=0.3)) as servers:
        await servers.tools("one")
        with pytest.raises(ToolServerUnavailable, match=r"within 0\.3s"):
            await servers.call("one", "hang", {})
        assert (await servers.call("one", "echo", {"text": "still"})).parts[0].text == "still"
        assert status_of(servers).num_starts == 1


@in_loop
async def test_a_caller_that_leaves_cancels_the_call() -> None:
    async with served(one=faulty("modern")) as servers:
        await servers.tools("one")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await servers.call("one", "hang", {})
        assert (await servers.call("one", "echo", {"text": "on"})).parts[0].text == "on"


@in_loop
async def test_a_server_that_dies_in_a_call_is_started_again_after_a_wait_that_doubles() -> None:
    clock = Clock()
    async with served(clock, one=faulty("modern")) as servers:
        for wait_s in (1, 1):  # a start that succeeds ends the row of failures
            with pytest.raises(ToolServerUnavailable, match=r"ended with status 3|output ended"):
                await servers.call("one", "die", {})
            assert status_of(servers).state is ServerState.WAITING
            with pytest.raises(ToolServerUnavailable, match=f"tried again in {wait_s}s"):
                await servers.tools("one")
            clock.now_s += wait_s
            assert await servers.tools("one")
        assert status_of(servers).num_starts == 3
    clock, nothing = Clock(), ToolServerSettings(command="/no/such/program")
    async with served(clock, one=nothing) as servers:
        for wait_s in (1, 2, 4):
            with pytest.raises(ToolServerUnavailable, match="cannot be used"):
                await servers.tools("one")
            with pytest.raises(ToolServerUnavailable, match=f"in {wait_s}s"):
                await servers.tools("one")
            clock.now_s += wait_s
        assert "/no/such/program: No such file" in status_of(servers).log[-1]


@in_loop
async def test_an_answer_of_40_mb_ends_in_an_error_or_a_cut() -> None:
    async with served(one=faulty("modern")) as servers:
        with pytest.raises(ToolServerUnavailable, match=r"message of more than \d+ bytes"):
            await servers.call("one", "flood", {})
        result = await _after_restart(servers, "many")
        assert result.was_cut
        assert sum(len(part.text.encode()) for part in result.parts[:-1]) <= MOST
        assert "longer than 4096 bytes" in result.parts[-1].text


async def _after_restart(servers: McpToolServers, tool: str) -> Any:
    await servers.restart("one")
    return await servers.call("one", tool, {})


@in_loop
async def test_errors_of_the_protocol_and_of_a_tool_differ() -> None:
    async with served(one=faulty("modern")) as servers:
        with pytest.raises(ToolCallFailed, match="no <") as found:
            await servers.call("one", "refuse", {})
        assert found.value.number == -32050
        assert "\n" not in found.value.message
        failed = await servers.call("one", "fail", {})
        assert (failed.is_error, failed.parts[0].text) == (True, "it failed")
        asked = await servers.call("one", "ask", {})
        assert asked.is_error
        assert "asked for input" in asked.parts[0].text


@in_loop
async def test_images_are_decoded_and_what_is_none_becomes_a_note() -> None:
    async with served(one=faulty("modern")) as servers:
        parts = (await servers.call("one", "image", {})).parts
    assert parts[0].image is not None
    assert parts[0].image.startswith(b"\x89PNG")
    assert [part.image for part in parts[1:]] == [None] * 3


@in_loop
async def test_names_and_sizes_out_of_bounds_are_left_out_and_told() -> None:
    async with served(odd=faulty("modern", "names"), large=faulty("modern", "large")) as servers:
        assert [tool.name for tool in await servers.tools("odd")] == sorted(TOOLS)
        large = await servers.tools("large")
        assert 0 < len(large) <= MAX_TOOLS
        assert sum(len(tool.description) for tool in large) <= MAX_LIST_BYTES
        odd_status, large_status = servers.status()
        assert "8 of its tools are left out" in odd_status.error
        assert "left out" in large_status.error


@in_loop
async def test_a_list_without_end_is_an_error_and_a_changed_one_is_counted() -> None:
    async with served(one=faulty("modern", "endless")) as servers:
        with pytest.raises(ToolServerUnavailable, match="pages"):
            await servers.tools("one")
    async with served(one=faulty("older", "changing")) as servers:
        before = await servers.tools("one")
        assert await servers.tools("one") == before
        await servers.call("one", "announce", {})
        after = await servers.tools("one")
        assert {tool.name for tool in after} - {tool.name for tool in before} == {"new2"}
        assert status_of(servers).num_changes == 1
        await servers.restart("one")
        assert await servers.tools("one") == before
        assert status_of(servers).num_changes == 2


@in_loop
async def test_a_server_that_prints_or_asks_the_client_does_no_harm() -> None:
    async with served(one=faulty("modern", "noisy")) as servers:
        assert (await servers.call("one", "stray", {})).is_error is False
        refused = json.loads((await servers.call("one", "asks_client", {})).parts[0].text)
        assert refused["error"]["code"] == -32601
        assert len(status_of(servers).log) <= 50
        assert max(map(len, status_of(servers).log)) <= 500


@in_loop
async def test_many_callers_share_one_start_and_one_list_which_outlive_the_first_of_them(tmp_path: Path) -> None:
    async with served(one=faulty("older", "slow", "changing", str(tmp_path))) as servers:
        callers = [asyncio.create_task(servers.tools("one")) for _ in range(20)]
        await until((tmp_path / "started").exists)
        callers[0].cancel()
        (tmp_path / "allowed").touch()
        first, *others = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert {len(tools) for tools in others if not isinstance(tools, BaseException)} == {len(TOOLS) + 1}
        status = status_of(servers)
        assert (status.num_starts, status.num_changes, status.error) == (1, 0, "")


@in_loop
async def test_a_caller_that_leaves_ends_no_start_of_others() -> None:
    async with served(one=faulty("modern")) as servers:
        first = asyncio.create_task(servers.tools("one"))
        second = asyncio.create_task(servers.tools("one"))
        await until(lambda: status_of(servers).state is ServerState.STARTING)
        first.cancel()
        assert len(await second) == len(TOOLS)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, new_event_loop])
def test_programs_that_do_not_exist_are_unavailable(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def list_all() -> list[object]:
        absent = {f"absent{number}": ToolServerSettings(command="/no/such") for number in range(12)}
        async with served(**absent) as servers:
            return list(await asyncio.gather(*map(servers.tools, absent), return_exceptions=True))

    with asyncio.Runner(loop_factory=loop) as runner:
        assert {type(error) for error in runner.run(list_all())} == {ToolServerUnavailable}


@in_loop
async def test_closing_ends_a_list_that_callers_wait_for(tmp_path: Path) -> None:
    async with served(one=faulty("modern", "slow", str(tmp_path))) as servers:
        caller = asyncio.create_task(servers.tools("one"))
        await until((tmp_path / "started").exists)
        await servers.close()
        with pytest.raises(ToolServerUnavailable, match="stopping"):
            await caller


@in_loop
async def test_closing_ends_the_process_and_what_it_has_started() -> None:
    async with served(one=faulty("modern")) as servers:
        await servers.tools("one")
        stdio = servers._connections["one"].stdio
        assert stdio is not None
        assert stdio._process is not None
        pid = stdio._process.pid
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    with pytest.raises(ToolServerUnavailable, match="stopping"):
        await servers.tools("one")
