"""Three calls of a server's tools in one response, by the service as it ships, on a dense, a hybrid and a windowed
model: each step reuses the whole prompt of the step before."""

import importlib
import itertools
import json
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS, SEER_ID, embedded_folder
from application.ports.tool_servers import ResultPart, Tool, ToolResult
from application.services.text_side.answers.answer import Answer
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from application.use_cases.generate import Generate
from application.use_cases.tool_loop import ToolLoop
from domain.request.chat import CallMode, ToolChoice
from domain.request.request import ChatPrompt, GenerationRequest
from interfaces.composition import http
from interfaces.http.services import Services
from tests.support.http.servers.live_service import live_service
from tests.support.mcp.fake_servers import FakeToolServers
from tests.support.mlx.tiny_models import build, config_of, save

WINDOWED = "windowed"
NUM_CALLS = 3
TOOLS: Any = [{"type": "mcp", "server_label": "time", "require_approval": "never"}]
MAX_BEYOND = 16
"""Tokens that a step computes anew, at most."""

CLOCK = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}


@dataclass(frozen=True)
class Step:
    prompt: tuple[int, ...]
    num_reused: int
    num_sampled: int


class Insisting:
    """A Generate that requires a call in each of the first steps: a prompt does not change with the choice. `steps`:
    what each one reused."""

    def __init__(self, generate: Generate, steps: list[Step]) -> None:
        self._generate = generate
        self._steps = steps

    def enclosing(self, request: GenerationRequest) -> AbstractContextManager[None]:
        return self._generate.enclosing(request)

    @asynccontextmanager
    async def answering(self, requests: Sequence[GenerationRequest]) -> AsyncGenerator[Answer]:
        (request,) = requests
        assert isinstance(request.prompt, ChatPrompt)
        if len(self._steps) < NUM_CALLS:
            required = ToolChoice(CallMode.REQUIRED, one_call=True)
            request = replace(request, prompt=replace(request.prompt, tool_choice=required))
        async with self._generate.answering([request]) as answer:
            yield answer
        (choice,) = answer.choices
        assert choice.admitted is not None
        reused, sampled = choice.admitted.explanation.stopped_at, choice.num_tokens
        self._steps.append(Step(tuple(answer.prompts[0]), reused, sampled))


def write_windowed(folder: Path) -> None:
    """A tiny model with windows of 40 tokens, and the tokenizer and the form of calls of the embedded ones."""
    origin = embedded_folder(EMBEDDED_IDS[0])
    assert origin is not None
    shutil.copytree(origin, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.md", "config.json"))
    vocab_size = json.loads((origin / "config.json").read_text())["vocab_size"]
    config = {**config_of("gemma3_text", vocab_size=vocab_size), "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    save(build("gemma3_text", vocab_size=vocab_size), folder)


@pytest.fixture(params=[*EMBEDDED_IDS, WINDOWED])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def steps() -> list[Step]:
    return []


@pytest.fixture
def url(model: str, steps: list[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    part = ResultPart("It is noon in a town by the sea, and the sun is out. " * 3)
    if model == SEER_ID:
        part = ResultPart("[an image]", importlib.import_module("tests.support.mlx.vision.drawn_pictures").SHAPES)

    async def answer(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult([part])

    servers = FakeToolServers({"time": []}, answer)
    servers.set_tool(Tool("time", "now", "Tells the time in a zone.", CLOCK))

    def with_tools(**parts: Any) -> Services:
        generate = cast(Generate, Insisting(parts["generate"], steps))
        return Services(**{**parts, "tool_loop": ToolLoop(generate, servers, {"time": False})})

    monkeypatch.setattr(http, "Services", with_tools)
    write_windowed(tmp_path / WINDOWED)
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=model, download=False, dirs=(str(tmp_path),)),
        engine=EngineSettings(backend="mlx", queue=8),
        store=StoreSettings(kind="off"),
    )
    with live_service(settings) as running:
        yield running.base_url


def test_each_of_four_steps_reuses_the_whole_prompt_of_the_step_before(url: str, model: str, steps: list[Step]) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        fields: Any = {"model": model, "tools": TOOLS, "temperature": 0, "reasoning": {"effort": "none"}}
        asked = "What time is it in London and in Paris? " * 20
        with client.responses.stream(**fields, input=asked, max_output_tokens=400) as events:
            answer = list(events)[-1].response  # type: ignore[union-attr]
        num_steps = len(steps)
        client.responses.create(**fields, input="Thanks.", previous_response_id=answer.id, max_output_tokens=8)
    kinds = [item.type for item in answer.output if item.type not in ("reasoning", "message")]
    assert kinds == ["mcp_list_tools", *["mcp_call"] * NUM_CALLS]
    assert num_steps == NUM_CALLS + 1
    for before, after in itertools.pairwise(steps[: num_steps + 1]):
        assert after.prompt[: len(before.prompt)] == before.prompt
        assert after.num_reused >= len(before.prompt) - MAX_BEYOND
        if model == EMBEDDED_IDS[0]:  # the others write tokens, held to a grammar, that their text is not read as
            new = len(after.prompt) - len(before.prompt) - before.num_sampled
            assert len(after.prompt) - after.num_reused <= new + MAX_BEYOND


@pytest.mark.parametrize("model", [SEER_ID])
def test_a_model_that_sees_is_shown_the_image_of_each_result_once(url: str, model: str, steps: list[Step]) -> None:
    pytest.importorskip("mlx_vlm")
    fields = {"temperature": 0, "reasoning": {"effort": "none"}, "max_output_tokens": 400}
    body = {"model": model, "tools": TOOLS, "input": "Which shape is red?", **fields}
    response = httpx.post(f"{url}/v1/responses", json=body, timeout=300)
    assert response.status_code == 200, response.text
    answer = response.json()
    calls = [item for item in answer["output"] if item["type"] == "mcp_call"]
    assert [call["output"] for call in calls] == ["[an image]"] * NUM_CALLS
    assert answer["usage"]["input_tokens_details"]["image_tokens"] > 0
    for before, after in itertools.pairwise(steps):
        assert after.prompt[: len(before.prompt)] == before.prompt
        assert after.num_reused >= len(before.prompt) - MAX_BEYOND
