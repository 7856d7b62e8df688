"""The next turn of a conversation where memory is tight: it takes over the state that the last one left, though both as
large as they may get would not fit, and that state gives way as soon as its bytes are needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import pytest

from application.ports.engine import Ended, EngineItem, Submission, Tokens
from application.ports.tokenizer import EncodedPrompt
from domain.ids import RequestId
from domain.request import choice_id
from domain.sampling import SamplingParams
from tests.simulation.test_memory_runs import MODEL, BoundServer

LAYOUTS = ("attention", "hybrid")


@dataclass(frozen=True)
class Turn:
    """`tokens`: prompt and answer."""

    tokens: list[int]
    reused: Mapping[str, int]


def small_server(layout: str) -> BoundServer:
    """One longest sequence fits, and a little more."""
    return BoundServer(Random(1), layout, room=1.2, hot_share=0.9, live_share=0.9, max_batch=2)


def ask(server: BoundServer, *prompts: Sequence[int]) -> list[Turn]:
    """All at once, to the end."""
    asked = [submission(len(server.asked) + number, prompt) for number, prompt in enumerate(prompts)]
    server.asked += asked
    for one in asked:
        server.runner.add(one)
    assert server.finish() == {"ended": len(server.asked)}
    assert server.meter.problems == []
    assert server.live.check_integrity() == []
    return [turn(server.inbox.items[choice_id(one.id, 0)], one.prompt.token_ids) for one in asked]


def submission(number: int, prompt: Sequence[int]) -> Submission:
    return Submission(
        id=RequestId(f"r{number}"),
        model=MODEL,
        prompt=EncodedPrompt.of_text(prompt),
        sampling=SamplingParams(temperature=0.0, seed=0),
        seed=0,
        max_new_tokens=8,
    )


def turn(items: Sequence[EngineItem], prompt: Sequence[int]) -> Turn:
    answer = [id for item in items if isinstance(item, Tokens) for id in item.token_ids]
    (end,) = (item for item in items if isinstance(item, Ended))
    return Turn([*prompt, *answer], end.usage.reused)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_not_let_go_of_to_make_room_for_who_goes_on_from_it(layout: str) -> None:
    server = small_server(layout)
    (first,) = ask(server, range(200))
    (second,) = ask(server, [*first.tokens, *range(1_000, 1_100)])
    assert second.reused.keys() == {"live"}
    assert "drop_live" not in server.actions()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_gives_way_to_another_prompt_as_that_grows(layout: str) -> None:
    server = small_server(layout)
    ask(server, range(200))
    ask(server, range(1_000, 1_340))
    assert "drop_live" in server.actions()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_of_which_only_one_fits_at_a_time_both_end(layout: str) -> None:
    server = small_server(layout)
    firsts = ask(server, range(100), range(1_000, 1_100))
    assert server.live.usage().num_states == 2
    turns = ask(server, *([*first.tokens, *range(2_000, 2_150)] for first in firsts))
    assert "live" in turns[0].reused
