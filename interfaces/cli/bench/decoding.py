"""How fast a server decodes one answer, and several at once: rates, times to the first token, latencies in between.

Prompts are short and differ, so that nothing of them is worth reusing. Answers are asked to go to their length; where a
model ends them before, the rate is of the time in which all of them ran.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from interfaces.cli.bench.allowance import Spent
from interfaces.cli.bench.figures import Streams
from interfaces.cli.bench.prompts import user, words
from interfaces.cli.bench.target import REST_S, BenchFailed, Target
from interfaces.cli.bench.timeline import Timeline, decode_rate

PROMPT_WORDS = 6
PROMPT_TOKENS = 60
ASKED = "Count from one to one thousand, in words."


async def measure_decoding(
    target: Target, streams: Sequence[int], tokens: int, seed: int, sleep: Callable[[float], Awaitable[object]]
) -> AsyncGenerator[Streams]:
    """For each number of `streams`, of `tokens` each; what was not measured says why."""
    seeds = random.Random(seed)
    for count in streams:
        prompts = [[user(f"{words(_seed(seeds), PROMPT_WORDS)}. {ASKED}")] for _ in range(count)]
        try:
            yield _figures(await target.ask_together(prompts, tokens, PROMPT_TOKENS))
        except (BenchFailed, Spent) as why:
            yield Streams(count, note=str(why))
        await sleep(REST_S)


def _seed(seeds: random.Random) -> int:
    return seeds.randrange(10**6, 10**7)


def _figures(timelines: Sequence[Timeline]) -> Streams:
    num_chunks = sum(len(timeline.token_s) for timeline in timelines)
    num_tokens = sum(timeline.num_output or len(timeline.token_s) for timeline in timelines)
    return Streams(
        len(timelines),
        decode_rate(timelines),
        tuple(timeline.ttft_s for timeline in timelines),
        tuple(gap for timeline in timelines for gap in timeline.gaps_s),
        num_tokens,
        num_tokens / num_chunks,
    )
