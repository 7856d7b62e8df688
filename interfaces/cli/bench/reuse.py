"""What clients do to a prefix cache, done to one server: each scenario in rounds, each round with prompts of its own.

    cold prompt        a conversation that nobody sent before
    exact repeat       the same again
    next turn          the same with its answer and another question
    edit in the middle the same with one of its turns changed: half of it is as it was
    shared system      several clients at once with one fresh system prompt: until the last has its first token
    retry after cancel a fresh one, left at 60 % of what a cold one takes, and sent again at once
    after a pause      the first one again, when all of the above came in between

What is timed is the time to the first token. Nothing is known of how a server does it: a time far below the cold one is
what reuse looks like from outside, and cached tokens are what the server says they are.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from interfaces.cli.bench.allowance import Spent
from interfaces.cli.bench.figures import Scenario, percentile
from interfaces.cli.bench.prompts import TOKENS_A_WORD, Message, assistant, conversation, edited, system, user, words
from interfaces.cli.bench.target import REST_S, BenchFailed
from interfaces.cli.bench.timeline import Timeline

COLD, REPEAT, TURN, EDIT = "cold prompt", "exact repeat", "next turn", "edit in the middle"
CANCELLED, PAUSED = "retry after cancel", "after a pause"
LEAVES_AT = (0.6, 0.4, 0.2)
"""Shares of a cold prompt's time to its first token; less when that came before it was left all the same."""

TRIED_WORDS = 60


@dataclass(frozen=True, slots=True)
class ReuseOptions:
    """`prompt_tokens` are aimed at, `num_users` share a system prompt, `pause_s` is waited at the end."""

    prompt_tokens: int = 1000
    reply_tokens: int = 16
    rounds: int = 3
    num_users: int = 8
    pause_s: float = 10.0
    seed: int = 0

    @property
    def num_asked(self) -> int:
        """Requests in all."""
        return self.rounds * (7 + self.num_users)

    @property
    def num_tokens(self) -> int:
        """About, of all prompts and answers."""
        return self.num_asked * (self.prompt_tokens + self.reply_tokens)


class Asks(Protocol):
    """See `Target`."""

    async def ask(
        self, messages: Sequence[Message], max_tokens: int, estimate: int, leave_after_s: float | None = None
    ) -> Timeline: ...

    async def ask_together(
        self, prompts: Sequence[Sequence[Message]], max_tokens: int, estimate: int
    ) -> list[Timeline]: ...


class Reuse:
    """One run. `asked` is called after every request, `sleep` waits so many seconds."""

    def __init__(
        self,
        target: Asks,
        options: ReuseOptions,
        sleep: Callable[[float], Awaitable[object]],
        asked: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._target = target
        self._options = options
        self._sleep = sleep
        self._asked = asked
        self._seeds = random.Random(options.seed)
        self._tokens_a_word = TOKENS_A_WORD
        self._firsts: list[list[Message]] = []
        shared = f"{options.num_users} share a system prompt"
        self.scenarios = {name: Scenario(name) for name in (COLD, REPEAT, TURN, EDIT, shared, CANCELLED, PAUSED)}
        self._shared_name = shared

    async def warm_up(self) -> Timeline:
        """A short prompt: a server loads, compiles and is known to answer, and tells how long words are. Raises
        BenchFailed and Spent."""
        text = words(self._seed(), TRIED_WORDS)
        timeline = await self._target.ask([user(text)], self._options.reply_tokens, int(TRIED_WORDS * TOKENS_A_WORD))
        if timeline.num_prompt:
            self._tokens_a_word = timeline.num_prompt / TRIED_WORDS
        return timeline

    async def run(self) -> None:
        """Scenario by scenario; what fails or finds nothing left to spend is noted, and the next one is tried."""
        steps = ((COLD, self._dialogue), (self._shared_name, self._shared), (CANCELLED, self._cancelled))
        for name, step in steps:
            for _ in range(self._options.rounds):
                if not await self._tried(name, step):
                    break
        await self._tried(PAUSED, self._paused)
        self._note_missing()

    async def _tried(self, name: str, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except (BenchFailed, Spent) as why:
            self.scenarios[name].note = str(why)
            return False
        return True

    def _note_missing(self) -> None:
        """The scenarios of a dialogue stand and fall together."""
        why = self.scenarios[COLD].note
        for name in (REPEAT, TURN, EDIT):
            missing = len(self.scenarios[name].ttft_s) < self._options.rounds
            self.scenarios[name].note = why if missing else ""
        if len(self.scenarios[COLD].ttft_s) == self._options.rounds:
            self.scenarios[COLD].note = ""

    async def _dialogue(self) -> None:
        messages = conversation(self._seed(), self._num_words)
        cold = await self._ask(messages)
        self.scenarios[COLD].add(cold)
        self._firsts.append(messages)
        self.scenarios[REPEAT].add(await self._ask(messages))
        self.scenarios[TURN].add(await self._ask([*messages, assistant(cold.text), user("And then?")]))
        self.scenarios[EDIT].add(await self._ask(edited(messages)))

    async def _shared(self) -> None:
        options, shared = self._options, system(words(self._seed(), self._num_words))
        prompts = [[shared, user(f"Client {index} asks this.")] for index in range(options.num_users)]
        timelines = await self._target.ask_together(prompts, options.reply_tokens, options.prompt_tokens)
        self._asked(len(timelines))
        await self._sleep(REST_S)
        self.scenarios[self._shared_name].add(*timelines)

    async def _cancelled(self) -> None:
        cold_s = percentile(self.scenarios[COLD].ttft_s, 0.5)
        if cold_s is None:
            raise BenchFailed("there is no cold prompt to time it by")
        for share in LEAVES_AT:
            messages = conversation(self._seed(), self._num_words)
            left = await self._ask(messages, leave_after_s=cold_s * share)
            if not left.token_s:
                self.scenarios[CANCELLED].add(await self._ask(messages))
                return
        raise BenchFailed("answers begin too soon to leave before them; try more --prompt-tokens")

    async def _paused(self) -> None:
        if self._firsts:
            await self._sleep(self._options.pause_s)
        for messages in self._firsts:
            self.scenarios[PAUSED].add(await self._ask(messages))

    async def _ask(self, messages: list[Message], leave_after_s: float | None = None) -> Timeline:
        options = self._options
        timeline = await self._target.ask(messages, options.reply_tokens, options.prompt_tokens, leave_after_s)
        self._asked(1)
        if leave_after_s is None:
            await self._sleep(REST_S)
        return timeline

    @property
    def _num_words(self) -> int:
        return max(8, int(self._options.prompt_tokens / self._tokens_a_word))

    def _seed(self) -> int:
        return self._seeds.randrange(10**6, 10**7)
