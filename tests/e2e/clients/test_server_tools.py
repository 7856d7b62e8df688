"""The embedded models call the tools of a server between the steps of one answer, as OpenAI's and Anthropic's own
clients read it."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import anthropic
import openai
import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS
from application.ports.tool_servers import ResultPart, Tool, ToolResult
from application.settings import (
    EngineSettings,
    McpSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    ToolServerSettings,
)
from application.use_cases.tool_loop import ToolLoop
from interfaces.composition import http
from interfaces.http.services import Services
from tests.support.effort import some_of
from tests.support.http.servers.live_service import live_service
from tests.support.mcp.fake_servers import FakeToolServers
from tests.support.mlx.demo_chats import DemoChat, demo_conversation

MAX_BEYOND = 16
"""Tokens that a step computes beyond the new ones, at most."""


def question(seed: int) -> tuple[DemoChat, str]:
    """A question that a call answers, and the result of the call."""
    asked, answered = demo_conversation("tools_ep", seed=seed)[:2]
    return asked, answered.messages[-1]["content"]


@pytest.fixture(params=some_of(EMBEDDED_IDS, EMBEDDED_IDS[1:]))
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(model: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    asked, result = question(0)

    async def answer(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult([ResultPart(result)])

    servers = FakeToolServers({"t": []}, answer)
    for tool in asked.tools:
        function = tool["function"]
        servers.set_tool(Tool("t", function["name"], function["description"], function["parameters"]))

    def with_tools(**parts: Any) -> Services:
        loop = ToolLoop(parts["generate"], servers, {"t": False}, max_steps=3)
        return Services(**{**parts, "tool_loop": loop})

    monkeypatch.setattr(http, "Services", with_tools)
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=model, download=False),
        engine=EngineSettings(backend="mlx", queue=8),
        store=StoreSettings(kind="off"),
    )
    with live_service(settings) as running:
        yield running.base_url


def test_a_step_reuses_the_whole_prompt_of_the_step_before(url: str, model: str) -> None:
    asked, _ = question(0)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        fields: Any = {
            "model": model,
            "input": [{"role": one["role"], "content": one["content"]} for one in asked.messages],
            "tools": [{"type": "mcp", "server_label": "t", "require_approval": "never"}],
            "max_output_tokens": 200, "temperature": 0,
        }  # fmt: skip
        cut = client.responses.create(**fields, max_tool_calls=0, extra_body={"cache_salt": "first"})
        answer = client.responses.create(**fields)
        with client.responses.stream(**fields) as events:
            streamed = events.get_final_response()
    assert [item.type for item in answer.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert [item.type for item in streamed.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert streamed.output_text == answer.output_text
    called = answer.output[1]
    assert called.type == "mcp_call"
    assert (called.name, json.loads(called.arguments)) == asked.tool_call
    assert cut.usage is not None
    assert answer.usage is not None
    first, sampled = cut.usage.input_tokens, cut.usage.output_tokens
    reused = answer.usage.input_tokens_details.cached_tokens
    assert reused >= first
    assert reused >= first + sampled - MAX_BEYOND


def test_a_message_of_several_steps_is_continued_with_its_whole_prompt(url: str, model: str) -> None:
    asked, _ = question(0)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        messages: Any = [{"role": one["role"], "content": one["content"]} for one in asked.messages]
        fields: Any = {
            "model": model,
            "mcp_servers": [{"type": "url", "name": "t"}],
            "tools": [{"type": "mcp_toolset", "mcp_server_name": "t"}],
            "betas": ["mcp-client-2025-11-20"],
        }
        first = client.beta.messages.count_tokens(messages=messages, **fields).input_tokens
        with client.beta.messages.stream(
            messages=messages, max_tokens=200, extra_body={"temperature": 0}, **fields
        ) as events:
            answer = events.get_final_message()
        assert [block.type for block in answer.content] == ["mcp_tool_use", "mcp_tool_result", "text"]
        assert answer.stop_reason == "end_turn"
        called = answer.content[0]
        assert called.type == "mcp_tool_use"
        assert (called.name, called.input) == asked.tool_call
        assert answer.usage.cache_read_input_tokens is not None
        last_prompt = answer.usage.input_tokens + answer.usage.cache_read_input_tokens - first
        assert answer.usage.cache_read_input_tokens >= first
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "Thanks"}]
        whole = client.beta.messages.count_tokens(messages=messages, **fields).input_tokens
        more = client.beta.messages.create(messages=messages, max_tokens=1, **fields)
    assert more.usage.input_tokens <= whole - last_prompt + MAX_BEYOND


def test_an_approved_call_runs_on_a_real_server_that_the_settings_name() -> None:
    pytest.importorskip("mcp_server_time")
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=EMBEDDED_IDS[0], download=False),
        engine=EngineSettings(backend="mlx", queue=8),
        store=StoreSettings(kind="off"),
        mcp=McpSettings(servers={"time": ToolServerSettings(command=sys.executable, args=("-m", "mcp_server_time"))}),
    )
    named = {"server_label": "time", "name": "get_current_time", "arguments": '{"timezone": "UTC"}'}
    items: Any = [
        {"role": "user", "content": "What time is it?"},
        {"type": "mcp_approval_request", "id": "mcpr_1", **named},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ]
    with (
        live_service(settings) as running,
        openai.OpenAI(base_url=f"{running.base_url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        tools: Any = [{"type": "mcp", "server_label": "time", "allowed_tools": ["get_current_time"]}]
        answer = client.responses.create(model=EMBEDDED_IDS[0], input=items, tools=tools, max_output_tokens=20)
    listed, called = answer.output[:2]
    assert listed.type == "mcp_list_tools"
    assert [tool.name for tool in listed.tools] == ["get_current_time"]
    assert called.type == "mcp_call"
    assert called.output is not None
    assert json.loads(called.output)["timezone"] == "UTC"
