"""The scenarios of `cairn bench`: prompts that share prefixes in the ways of clients, then answers decoded at once.

    cold prompt        a conversation that was not sent before
    exact repeat       the same again
    next turn          the same with its answer and another question
    edit in the middle the same with one of its turns changed: half of it is as it was
    shared system      several clients at once with one fresh system prompt: until the last has its first token
    retry after cancel a fresh one, left at 60 % of the time of a cold one, and sent again at once
    after a pause      the first one again, after all of the above
    N streams          short prompts that differ; answers run to their length

The figure of reuse is the time to the first token. A server's reuse cannot be observed directly: a time far below the
cold one indicates it, and cached tokens are the server's own count.
"""

import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from interfaces.cli.bench.client import BenchFailed, Message, Target, Timeline, decode_rate

COLD, REPEAT, TURN, EDIT = "cold prompt", "exact repeat", "next turn", "edit in the middle"
CANCELLED, PAUSED = "retry after cancel", "after a pause"

LEAVES_AT = (0.6, 0.4, 0.2)
"""Shares of a cold prompt's time to its first token; the next one is tried if the answer had begun by then."""

REST_S = 0.4
"""The pause between two requests, so that work that a server does after its answer does not slow the next one."""

WORDS = "amber birch cedar delta ember fjord grove heath inlet juniper knoll larch".split()  # noqa: SIM905
TOKENS_A_WORD = 6.0
"""An estimate for most tokenizers; a word is a name and a number here."""

WARM_UP_WORDS = 60
NUM_TURNS = 4
REPLY_TOKENS = 16


def words(seed: int, count: int) -> str:
    """Returns a text of `count` words that differs for every seed."""
    return " ".join(f"{WORDS[(seed + i) % 12]} {seed * 7919 + i * 31}" for i in range(count))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def conversation(seed: int, count: int) -> list[Message]:
    """Returns a conversation: a short system prompt, some turns of `count` words in all, and a question."""
    messages = [{"role": "system", "content": f"You are assistant number {seed}."}]
    for turn in range(NUM_TURNS):
        messages.append(user(words(seed + turn, count // NUM_TURNS)))
        messages.append({"role": "assistant", "content": f"Noted, part {turn + 1}."})
    return [*messages, user(f"Say something about {seed}.")]


def edited(messages: Sequence[Message]) -> list[Message]:
    """Returns the conversation with a few words inserted before the middle one of its long messages."""
    middle = 1 + 2 * (NUM_TURNS // 2)
    changed = user("Please look at this again: " + messages[middle]["content"])
    return [*messages[:middle], changed, *messages[middle + 1 :]]


@dataclass
class Scenario:
    """The figures of one scenario; lists have an entry a round, or an answer for streams. `rate`: tokens a second over
    all streams while all run. `gaps_s`: between chunks. `note`: why rounds are missing, empty if none is."""

    name: str
    ttft_s: list[float] = field(default_factory=list[float])
    prompt_tokens: list[int | None] = field(default_factory=list[int | None])
    cached_tokens: list[int | None] = field(default_factory=list[int | None])
    output_tokens: int = 0
    rate: float | None = None
    gaps_s: list[float] = field(default_factory=list[float])
    tokens_a_chunk: float = 1.0
    note: str = ""

    def add(self, *timelines: Timeline) -> None:
        """Adds a round: of several concurrent answers, the time until the last one has its first token, and the sum of
        tokens."""
        sent_s = min(timeline.sent_s for timeline in timelines)
        self.ttft_s.append(max(timeline.first_token_s for timeline in timelines) - sent_s)
        self.prompt_tokens.append(_sum([timeline.num_prompt for timeline in timelines]))
        self.cached_tokens.append(_sum([timeline.num_cached for timeline in timelines]))

    def add_streams(self, timelines: Sequence[Timeline]) -> None:
        """Adds answers that were decoded at once."""
        num_chunks = sum(len(timeline.token_s) for timeline in timelines)
        self.ttft_s = [timeline.ttft_s for timeline in timelines]
        self.gaps_s = [gap for timeline in timelines for gap in timeline.gaps_s]
        self.output_tokens = sum(timeline.num_output or len(timeline.token_s) for timeline in timelines)
        self.tokens_a_chunk = self.output_tokens / num_chunks
        self.rate = decode_rate(timelines)


@dataclass(frozen=True, slots=True)
class Options:
    """The sizes of a run. `prompt_tokens`: size of long prompts. `rounds`: of each scenario of reuse, 0 for none.
    `users`: clients that share a system prompt. `pause_s`: before the last scenario. `streams`: numbers of answers of
    `tokens` that are decoded at once."""

    prompt_tokens: int = 1000
    rounds: int = 3
    users: int = 8
    pause_s: float = 10.0
    streams: tuple[int, ...] = (1, 4, 8)
    tokens: int = 128

    @property
    def num_requests(self) -> int:
        return self.rounds * (7 + self.users) + sum(self.streams)


class Bench:
    """One run on one server. `asked` is called with the number of requests that ended; `scenarios` fill up during the
    run, so that an interrupted run has figures too."""

    def __init__(
        self,
        target: Target,
        options: Options,
        sleep: Callable[[float], Awaitable[object]],
        asked: Callable[[int], None],
        seed: int,
    ) -> None:
        self._target = target
        self._options = options
        self._sleep = sleep
        self._asked = asked
        self._seeds = random.Random(seed)
        self._num_words = 0
        self._firsts: list[list[Message]] = []
        self._shared_name = f"{options.users} share a system prompt"
        reuse = (COLD, REPEAT, TURN, EDIT, self._shared_name, CANCELLED, PAUSED) if options.rounds else ()
        streams = [f"{count} streams" for count in options.streams]
        self.scenarios = {name: Scenario(name) for name in (*reuse, *streams)}

    async def run(self) -> None:
        """Runs the scenarios in order; a failure is noted, and the next one is tried. Raises BenchFailed for a server
        that cannot be measured at all."""
        await self._target.choose_model()
        await self._warm_up()
        steps = [(COLD, self._dialogue), (self._shared_name, self._shared), (CANCELLED, self._cancelled)]
        for name, step in steps:
            for _ in range(self._options.rounds):
                if not await self._tried(name, step):
                    break
        if self._options.rounds:
            await self._tried(PAUSED, self._paused)
            for name in (REPEAT, TURN, EDIT):  # a dialogue is one step
                self.scenarios[name].note = self.scenarios[COLD].note
        for count in self._options.streams:
            await self._tried(f"{count} streams", partial(self._decode, count))

    async def _warm_up(self) -> None:
        """Sends a short prompt, so that the server loads and compiles, and its count shows the tokens of a word."""
        timeline = await self._target.ask([user(words(self._seed(), WARM_UP_WORDS))], REPLY_TOKENS)
        tokens_a_word = timeline.num_prompt / WARM_UP_WORDS if timeline.num_prompt else TOKENS_A_WORD
        self._num_words = max(8, int(self._options.prompt_tokens / tokens_a_word))

    async def _tried(self, name: str, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except BenchFailed as why:
            self.scenarios[name].note = str(why)
            return False
        return True

    async def _dialogue(self) -> None:
        messages = conversation(self._seed(), self._num_words)
        cold = await self._ask(messages)
        said = {"role": "assistant", "content": cold.text}
        self.scenarios[COLD].add(cold)
        self._firsts.append(messages)
        self.scenarios[REPEAT].add(await self._ask(messages))
        self.scenarios[TURN].add(await self._ask([*messages, said, user("And then?")]))
        self.scenarios[EDIT].add(await self._ask(edited(messages)))

    async def _shared(self) -> None:
        shared = {"role": "system", "content": words(self._seed(), self._num_words)}
        prompts = [[shared, user(f"Client {index} asks this.")] for index in range(self._options.users)]
        self.scenarios[self._shared_name].add(*await self._ask_together(prompts, REPLY_TOKENS))

    async def _cancelled(self) -> None:
        if not self.scenarios[COLD].ttft_s:
            raise BenchFailed("no cold prompt was measured to derive the delay from")
        cold_s = statistics.median(self.scenarios[COLD].ttft_s)
        for share in LEAVES_AT:
            messages = conversation(self._seed(), self._num_words)
            left = await self._ask(messages, leave_after_s=cold_s * share)
            if not left.token_s:
                self.scenarios[CANCELLED].add(await self._ask(messages))
                return
        raise BenchFailed("answers begin before the client can disconnect; raise --prompt-tokens")

    async def _paused(self) -> None:
        await self._sleep(self._options.pause_s)
        for messages in self._firsts:
            self.scenarios[PAUSED].add(await self._ask(messages))

    async def _decode(self, count: int) -> None:
        asked = "Count from one to one thousand, in words."
        prompts = [[user(f"{words(self._seed(), 6)}. {asked}")] for _ in range(count)]
        self.scenarios[f"{count} streams"].add_streams(await self._ask_together(prompts, self._options.tokens))

    async def _ask(self, messages: list[Message], leave_after_s: float | None = None) -> Timeline:
        timeline = await self._target.ask(messages, REPLY_TOKENS, leave_after_s)
        self._asked(1)
        if leave_after_s is None:
            await self._sleep(REST_S)
        return timeline

    async def _ask_together(self, prompts: Sequence[Sequence[Message]], max_tokens: int) -> list[Timeline]:
        timelines = await self._target.ask_together(prompts, max_tokens)
        self._asked(len(timelines))
        await self._sleep(REST_S)
        return timelines

    def _seed(self) -> int:
        return self._seeds.randrange(10**6, 10**7)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
