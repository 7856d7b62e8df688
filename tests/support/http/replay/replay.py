"""Replayed chats: their messages, the requests with an account of what each had to compute, and the servers compared.

Every answer is greedy, so two servers can be compared word for word. Token ids come from the server itself.
"""

import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from adapters.mlx.runtime.device import preferred_grid
from adapters.tokenizers.loader import HfTokenizerLoader
from application.services.prefix.store_tier import Upload
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.prefix.explanation import common_length
from interfaces.composition.backends import Backend, model_repository
from tests.support.engines.steered_engine import PrefillGate, SteeredEngine
from tests.support.http.clients import chat_text, events
from tests.support.http.servers.fake_service import wait_until
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.mlx.demo_chats import material
from tests.support.processes.cli_process import CairnProcess, cairn_process
from tests.support.telemetry.recording import RecordingEvents

Message = dict[str, Any]

KV_BITS = os.environ.get("TEST_KV_BITS", "off")
"""The setting `model.kv_bits` of every server that a chat is replayed against."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def prose(num_words: int, seed: int) -> str:
    """Nothing two seeds have in common beyond a few words."""
    return " ".join(random.Random(seed).choices(material().words, k=num_words))


def some_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(10, 400), k=count)


def opening(num_words: int = 60) -> list[Message]:
    return [{"role": "system", "content": f"You are a guide in the hills. Notes: {prose(num_words, 1)}."}]


def question(number: int, num_words: int = 14) -> Message:
    return {"role": "user", "content": f"Question {number}. I saw {prose(num_words, 100 + number)}. What do you say?"}


def tool_call(city: str) -> list[Message]:
    """What a client adds to the history when the model called a tool: the call and its result."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    called = {"id": f"call_{city}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": called["id"], "content": f"{city}: light snow, {prose(12, 7)}"},
    ]


def long_chat(seed: int, ending: str = "What now?", num_words: int = 215) -> list[Message]:
    """One long user message that shares nothing with those of other seeds."""
    return [{"role": "user", "content": f"{prose(num_words, 1000 + seed)}. {ending}"}]


TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`num_shared`: prompt tokens in common with the beginning of something this server had computed before."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    text: str
    num_cached: int
    num_shared: int

    @property
    def num_computed(self) -> int:
        return len(self.prompt_ids) - self.num_cached

    @property
    def num_new(self) -> int:
        """What a perfect cache would compute: the tokens that were never sent before, and always the last one."""
        return max(1, len(self.prompt_ids) - self.num_shared)


class Replay:
    """`settings` go into every request's body. `client` may be replaced: a server that was started anew."""

    def __init__(self, client: httpx.Client, model: str, **settings: Any) -> None:
        self.client = client
        self.model = model
        self._settings = {"model": model, "temperature": 0, "return_token_ids": True, **settings}
        self._computed: list[tuple[int, ...]] = []

    def chat(self, messages: Sequence[dict[str, Any]], **changes: Any) -> Answer:
        return self._ask("/v1/chat/completions", {"messages": list(messages), **changes})

    def complete(self, prompt_ids: Sequence[int], **changes: Any) -> Answer:
        return self._ask("/v1/completions", {"prompt": list(prompt_ids), **changes})

    @contextmanager
    def streamed_chat(self, messages: Sequence[dict[str, Any]], **changes: Any) -> "Iterator[StreamedChat]":
        """Submitted when the block begins; the client leaves when it ends."""
        options = {"stream": True, "stream_options": {"include_usage": True}}
        body = {**self._settings, "messages": list(messages), **options, **changes}
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, response.read()
            yield StreamedChat(self, response)

    def num_shared(self, prompt_ids: Sequence[int]) -> int:
        return max((common_length(known, prompt_ids) for known in self._computed), default=0)

    def account(self, choice: dict[str, Any], prompt_ids: Sequence[int], usage: dict[str, Any], text: str) -> Answer:
        prompt = tuple(prompt_ids)
        output = tuple(choice["token_ids"])
        assert len(prompt) == usage["prompt_tokens"]
        shared = self.num_shared(prompt)
        self._computed.append(prompt + output)
        return Answer(prompt, output, text, usage["prompt_tokens_details"]["cached_tokens"], shared)

    def _ask(self, path: str, body: dict[str, Any]) -> Answer:
        response = self.client.post(path, json={**self._settings, **body})
        assert response.status_code == 200, response.text
        answer = response.json()
        choice = answer["choices"][0]
        prompt_ids = answer["prompt_token_ids"] if "prompt_token_ids" in answer else choice["prompt_token_ids"]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        return self.account(choice, prompt_ids, answer["usage"], text)


class StreamedChat:
    """A request that is being answered. Accounted for when `finish` returns."""

    def __init__(self, replay: Replay, response: httpx.Response) -> None:
        self._replay = replay
        self._response = response
        self._chunks = response.iter_text()
        self._received = ""

    def read_until(self, marker: str) -> None:
        while marker not in self._received:
            piece = next(self._chunks, None)
            assert piece is not None, f"the stream ended before {marker!r}: {self._received[-300:]}"
            self._received += piece

    def leave(self) -> None:
        self._response.close()

    def rest(self) -> str:
        """The whole transcript, once it has ended."""
        self._received += "".join(self._chunks)
        return self._received

    def finish(self) -> Answer:
        chunks = events(self.rest())
        choices = [event["choices"][0] for event in chunks if event["choices"]]
        token_ids = [token for choice in choices for token in choice.get("token_ids", ())]
        return self._replay.account(
            {"token_ids": token_ids}, chunks[0]["prompt_token_ids"], chunks[-1]["usage"], chat_text(chunks)
        )


@dataclass
class CachingServer:
    """In this process, on a store of its own; prefill can be held by `gate`, and `events` has what happened."""

    live: LiveService
    client: httpx.Client
    gate: PrefillGate
    events: RecordingEvents

    def num_streams(self) -> int:
        """Answers somebody listens to. One less means that its cancellation has reached the engine."""
        return self.live.service.container.requests().num_read

    def num_lookups(self) -> int:
        """Prompts that are being hashed."""
        tiers = self.live.service.engine._loop.prefix_cache.tiers  # type: ignore[attr-defined]
        return int(tiers.hashing.num_pending)


@contextmanager
def caching_server(
    store_dir: Path, engine: EngineSettings | None = None, model_dir: Path | None = None, upload: Upload | None = None
) -> Iterator[CachingServer]:
    """`upload`: as in Backend; where this runs, the backend itself has none."""
    settings = _settings(StoreSettings(dir=str(store_dir)), engine, model_dir)
    gate, events = PrefillGate(), RecordingEvents()
    steered = Backend(
        lambda: SteeredEngine(gate), model_repository(settings), HfTokenizerLoader(), preferred_grid(), upload=upload
    )
    with (
        live_service(settings, backend=steered, extra_sinks=(events,)) as live,
        httpx.Client(base_url=live.base_url, timeout=TIMEOUT_S) as client,
    ):
        yield CachingServer(live, client, gate, events)


def _settings(store: StoreSettings, engine: EngineSettings | None, model_dir: Path | None) -> Settings:
    model = ModelSettings(download=False, kv_bits=KV_BITS)
    if model_dir is not None:
        model = replace(model, default=_first_of(model_dir), dirs=(str(model_dir),))
    return Settings(
        server=ServerSettings(port=0, keepalive_s=0.05),
        model=model,
        engine=engine or EngineSettings(),
        store=store,
    )


def _first_of(model_dir: Path) -> str:
    """What is loaded at the start: a tiny one, for the embedded one is measured for seconds."""
    return min(path.name for path in model_dir.iterdir())


@contextmanager
def cairn_server(home: Path, *arguments: str, **variables: str) -> Iterator[tuple[CairnProcess, httpx.Client]]:
    """`cairn serve` as a process of its own."""
    if "--model-dir" in arguments:
        variables["CAIRN_MODEL__DEFAULT"] = _first_of(Path(arguments[arguments.index("--model-dir") + 1]))
    command = ("serve", "--port", "0", "--kv-bits", KV_BITS, *arguments)
    with cairn_process(home, command, module="tests.support.stores.small_blocks", **variables) as cairn:
        found = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
        assert found
        with httpx.Client(base_url=found[1], timeout=TIMEOUT_S) as client:
            yield cairn, client


CACHELESS = ("--store", "off", "--hot-tier", "0")
"""Arguments of a `cairn_server` that computes every prompt from its first token."""


@contextmanager
def cacheless_server(model_dir: Path, engine: EngineSettings | None = None) -> Iterator[httpx.Client]:
    """The same in this process, where no other server may compute meanwhile."""
    store = StoreSettings(kind="off", hot_tier=ByteSize(num_bytes=0))
    with (
        live_service(_settings(store, engine, model_dir)) as live,
        httpx.Client(base_url=live.base_url, timeout=TIMEOUT_S) as client,
    ):
        yield client


def wait_until_written(client: httpx.Client) -> None:
    """Until the store has everything that was captured."""

    def is_written() -> bool:
        queue = client.get("/v1/cache/stats").json()["queue"]
        return queue["enqueued"] > 0 and not queue["queued"]  # what a later turn let go of was withdrawn

    wait_until(is_written, "the store to have everything")
