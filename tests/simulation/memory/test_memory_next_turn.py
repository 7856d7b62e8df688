"""Memory that holds the state of one conversation once: the next turn takes over what the last one left, and all
reservations of a step share one room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest

from application.events import PrefillChunkComputed
from application.ports.engine import Ended, Submission, Tokens
from application.ports.tokenizer import EncodedPrompt
from domain.ids import RequestId
from domain.request.request import choice_id
from domain.request.sampling import SamplingParams
from tests.simulation.memory.test_memory_runs import MODEL, BoundServer

LAYOUTS = ("attention", "hybrid", "windowed")


@dataclass(frozen=True)
class Turn:
    """`tokens`: prompt and answer."""

    tokens: list[int]
    reused: Mapping[str, int]
    num_computed: int


def server_of(layout: str, *, hot_share: float = 0.9, live_share: float = 0.9, room: float = 1.2) -> BoundServer:
    """One longest sequence fits, and a little more."""
    return BoundServer(Random(1), layout, room=room, hot_share=hot_share, live_share=live_share, max_batch=4)


def ask(server: BoundServer, *prompts: Sequence[int]) -> list[Turn]:
    """All at once, to the end."""
    asked = [submission(len(server.asked) + number, prompt) for number, prompt in enumerate(prompts)]
    server.asked += asked
    for one in asked:
        server.loop.add(one)
    assert server.finish() == {"ended": len(server.asked)}
    assert server.meter.problems == []
    assert server.live.check_integrity() == []
    return [turn(server, one) for one in asked]


def submission(number: int, prompt: Sequence[int]) -> Submission:
    return Submission(
        id=RequestId(f"r{number}"),
        model=MODEL,
        prompt=EncodedPrompt.of_text(prompt),
        sampling=SamplingParams(temperature=0.0, seed=0),
        seed=0,
        max_new_tokens=8,
    )


def turn(server: BoundServer, asked: Submission) -> Turn:
    id = choice_id(asked.id, 0)
    items = server.inbox.items[id]
    answer = [token for item in items if isinstance(item, Tokens) for token in item.token_ids]
    (end,) = (item for item in items if isinstance(item, Ended))
    chunks = [event for event in server.events.events if isinstance(event, PrefillChunkComputed) and event.id == id]
    num_computed = sum(chunk.end - chunk.start for chunk in chunks)
    return Turn([*asked.prompt.token_ids, *answer], end.usage.reused, num_computed)


@pytest.mark.parametrize("hot_share", [0.0, 0.9])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_takes_over_what_the_last_one_left(layout: str, hot_share: float) -> None:
    server = server_of(layout, hot_share=hot_share)
    (talk,) = ask(server, range(200))
    for number in range(1, 4):
        new = range(1_000 * number, 1_000 * number + 30)
        before, (talk,) = len(talk.tokens), ask(server, [*talk.tokens, *new])
        # The last token of an answer was never fed.
        assert (talk.reused, talk.num_computed) == ({"live": before - 1}, len(new) + 1)
    assert "drop_live" not in server.actions()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_does_so_while_others_wait_and_compute(layout: str) -> None:
    """Those that cannot be computed beside it make no room for themselves by what it is about to take over."""
    server = server_of(layout, room=2.0)
    (talk,) = ask(server, range(200))
    turns = ask(server, [*talk.tokens, *range(1_000, 1_100)], range(2_000, 2_200), range(3_000, 3_200))
    assert turns[0].reused.keys() == {"live"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_left_gives_way_to_another_prompt(layout: str) -> None:
    server = server_of(layout)
    ask(server, range(200))
    ask(server, range(1_000, 1_340))
    assert "drop_live" in server.actions()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_that_could_take_it_over_both_end(layout: str) -> None:
    """Only one of them is charged as who does so."""
    server = server_of(layout)
    (talk,) = ask(server, range(150))
    turns = ask(server, [*talk.tokens, *range(2_000, 2_090)], [*talk.tokens, *range(3_000, 3_090)])
    assert turns[0].reused.keys() == {"live"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_conversations_of_which_only_one_fits_at_a_time_both_end(layout: str) -> None:
    server = server_of(layout, room=1.4)
    firsts = [*ask(server, range(100)), *ask(server, range(1_000, 1_100))]
    assert server.live.usage().num_states == 2
    turns = ask(server, *([*first.tokens, *range(2_000, 2_150)] for first in firsts))
    assert "live" in turns[0].reused


@pytest.mark.parametrize("room", [2.05, 2.2, 2.6])
def test_a_row_is_copied_while_a_prompt_with_two_choices_is_computed(room: float) -> None:
    """One ends beside another, whose batch holds its row until it decodes again, just as a prompt comes to its end."""
    server = server_of("attention", room=room, hot_share=0.0)
    ends = replace(submission(0, range(200)), max_new_tokens=7)
    stays = replace(submission(1, range(5_000, 5_020)), max_new_tokens=40)
    choices = replace(submission(2, range(1_000, 1_200)), max_new_tokens=2, num_choices=2)
    server.asked += [ends, stays, choices]
    for one in (ends, stays):
        server.loop.add(one)
    for _ in range(6):
        server.lane.run()
        server.step()
    server.loop.add(choices)
    for _ in range(200):
        server.lane.run()
        server.step()
    assert not server.loop.is_busy
    assert server.meter.problems == []
    assert server.meter.num_calls["keep_live"]
    assert server.live.check_integrity() == []
