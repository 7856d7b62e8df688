"""Requests sent one after another to one model of one server, with an account of what each had to compute.

Every answer is greedy, so two servers can be compared word for word. Token ids come from the server itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from domain.prefix.explanation import common_length
from tests.support.http import sse

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
        """What a perfect cache would compute: the tokens nobody has sent before, and always the last one."""
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
        events = sse.events(self.rest())
        choices = [event["choices"][0] for event in events if event["choices"]]
        token_ids = [token for choice in choices for token in choice.get("token_ids", ())]
        return self._replay.account(
            {"token_ids": token_ids}, events[0]["prompt_token_ids"], events[-1]["usage"], sse.chat_text(events)
        )
