"""The requests of clients of a prefix cache, sent to several servers in turn.

All servers run for the whole time; only one is asked at a time. Each round of a scenario asks every server the same, in
an order that moves by one from round to round, so that a machine whose speed drifts does so for all of them alike, and
ratios are of requests that lie next to each other.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.common.servers import ServerProcess
from bench.http_client import Message, Timeline, measure, user, words
from bench.serve import PLAIN_TEXT

FOLLOW_UP = "And then? Say it in a few words."
REPLY_TOKENS = 16
REST_S = 0.4
"""Between two requests: what a server still does after its answer must not slow the next one's."""

STORED_AFTER_S = 2.0
"""A prompt that was answered so long ago must survive a kill."""

GROUPS = ("dialogues", "shared", "cancelled", "rotation", "restarts")


@dataclass
class Contender:
    """A running server, the model's name there, and its figures: milliseconds by scenario, one a round; `computed`:
    tokens of the prompt that it did not reuse, as the last round's answer said."""

    name: str
    server: ServerProcess
    model: str
    ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    computed: dict[str, int] = field(default_factory=dict[str, int])

    def chat(self, messages: Sequence[Message], **extra: Any) -> dict[str, Any]:
        return chat(self.model, messages) | extra

    def ask(self, *requests: dict[str, Any]) -> list[Timeline]:
        timelines = measure(self.server.url, list(requests))
        for request, timeline in zip(requests, timelines, strict=True):
            if "cancel_after_s" not in request and (timeline.error or timeline.status != 200):
                raise RuntimeError(f"{self.name}: {timeline.status} {timeline.error}")
        time.sleep(REST_S)
        return timelines

    def note(self, scenario: str, timeline: Timeline) -> str:
        """Keep a figure; returns the answer."""
        self.ms[scenario].append(timeline.ttft_s * 1e3)
        self.computed[scenario] = computed(timeline)
        return timeline.text


def computed(timeline: Timeline) -> int:
    """Tokens of the prompt that the server's answer does not report as reused."""
    return (timeline.num_prompt or 0) - (timeline.num_cached or 0)


def chat(model: str, messages: Sequence[Message]) -> dict[str, Any]:
    """A streamed chat for `measure`."""
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": REPLY_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": PLAIN_TEXT,
    }
    return {"path": "/v1/chat/completions", "body": body}


def thinking(request: dict[str, Any]) -> dict[str, Any]:
    """The same chat, whose answer begins with reasoning."""
    return request | {"body": request["body"] | {"chat_template_kwargs": {"enable_thinking": True}}}


@dataclass
class Scenarios:
    """`count`: words of a long prompt. `rounds`: how often each scenario is run."""

    contenders: Sequence[Contender]
    count: int
    rounds: int

    def run(self, groups: Collection[str] = GROUPS) -> None:
        """`groups`: which to run, of GROUPS. The dialogues come first: a cancellation is timed by what is cold."""
        self._in_turn(0, lambda one: one.ask(one.chat(self._dialogue(900, 20))))  # compiles kernels
        steps = {"dialogues": self._dialogues, "shared": self._shared, "cancelled": self._cancelled}
        for step in [steps[group] for group in steps if group in groups]:
            for number in range(self.rounds):
                step(number)
        if "rotation" in groups:
            self._rotation()
        for number in range(self.rounds if "restarts" in groups else 0):
            self._restarted("after restart", 400 + number, lambda one: one.server.stop())
            self._restarted("after kill -9", 500 + number, lambda one: one.server.kill())

    def _in_turn(self, number: int, act: Callable[[Contender], object]) -> None:
        first = number % len(self.contenders)
        for one in (*self.contenders[first:], *self.contenders[:first]):
            act(one)

    def _dialogues(self, number: int) -> None:
        """The next turn has three forms: the answer is sent back as it was, edited by the client, or without its
        reasoning, which the template drops."""
        messages, replies = self._dialogue(1 + number), dict[str, str]()
        thought = self._dialogue(600 + number)

        def cold(one: Contender) -> None:
            replies[one.name] = one.note("cold", one.ask(one.chat(messages))[0])

        def turn(one: Contender, scenario: str, answer: str) -> None:
            said = {"role": "assistant", "content": answer}
            one.note(scenario, one.ask(one.chat([*messages, said, user(FOLLOW_UP)]))[0])

        def reasoned(one: Contender) -> None:
            one.ask(thinking(one.chat(thought)))
            asked = [*thought, {"role": "assistant", "content": "It is so."}, user(FOLLOW_UP)]
            one.note("next turn, reasoning dropped", one.ask(thinking(one.chat(asked)))[0])

        self._in_turn(number, cold)
        self._in_turn(number, lambda one: one.note("repeat", one.ask(one.chat(messages))[0]))
        self._in_turn(number, lambda one: turn(one, "next turn, answer resent", replies[one.name]))
        self._in_turn(number, lambda one: turn(one, "next turn, answer edited", "It was edited: " + replies[one.name]))
        other = [messages[0], user(f"Somebody else asks. {FOLLOW_UP}")]
        self._in_turn(number, lambda one: one.note("other user", one.ask(one.chat(other))[0]))
        self._in_turn(number, reasoned)

    def _rotation(self) -> None:
        """Twelve conversations, each with its second turn when all have had their first."""
        dialogues = [self._dialogue(100 + index, self.count // 3) for index in range(12)]
        replies: dict[tuple[str, int], str] = {}
        for index, messages in enumerate(dialogues):

            def first(one: Contender, index: int = index, messages: list[Message] = messages) -> None:
                replies[one.name, index] = one.ask(one.chat(messages))[0].text

            self._in_turn(index, first)
        for index, messages in enumerate(dialogues):

            def second(one: Contender, index: int = index, messages: list[Message] = messages) -> None:
                said = {"role": "assistant", "content": replies[one.name, index]}
                one.note("rotation of 12", one.ask(one.chat([*messages, said, user("Go on.")]))[0])

            self._in_turn(index, second)

    def _shared(self, number: int) -> None:
        """Eight clients at once with one fresh system prompt: until the last of them has its first token."""
        system = self._dialogue(200 + number)[0]

        def all_ask(one: Contender) -> None:
            asked = [one.chat([system, user(f"Client {index} asks this.")]) for index in range(8)]
            timelines = one.ask(*asked)
            last_s = max(timeline.first_token_s for timeline in timelines)
            one.ms["8 share a prefix"].append((last_s - min(timeline.sent_s for timeline in timelines)) * 1e3)
            one.computed["8 share a prefix"] = sum(map(computed, timelines))

        self._in_turn(number, all_ask)

    def _cancelled(self, number: int) -> None:
        """Disconnect and ask again at once: a server that goes on computing must not gain from the others' turns."""
        messages = self._dialogue(300 + number)

        def leave_and_ask(one: Contender) -> None:
            one.ask(one.chat(messages, cancel_after_s=min(one.ms["cold"]) * 0.6 / 1e3))
            one.note("after cancel at 60%", one.ask(one.chat(messages))[0])

        self._in_turn(number, leave_and_ask)

    def _restarted(self, scenario: str, seed: int, end: Callable[[Contender], None]) -> None:
        messages = self._dialogue(seed)
        self._in_turn(seed, lambda one: one.ask(one.chat(messages)))
        time.sleep(STORED_AFTER_S)
        self._in_turn(seed, end)
        self._in_turn(seed, lambda one: one.server.start())
        # The first request of a process compiles kernels.
        self._in_turn(seed, lambda one: one.ask(one.chat(self._dialogue(seed + 1_000, 20))))
        self._in_turn(seed, lambda one: one.note(scenario, one.ask(one.chat(messages))[0]))

    def _dialogue(self, seed: int, count: int | None = None) -> list[Message]:
        return [{"role": "system", "content": words(seed, count or self.count)}, user(f"Say something about {seed}.")]
