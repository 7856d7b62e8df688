"""A conversation over HTTP, turn by turn: what each request computes, and that reuse never changes an answer.

Tokens computed are `prompt_tokens - cached_tokens` of the server's own usage. They are held against the longest prefix
that the prompt shares with anything computed before, prompt and answer together: what is left are the new tokens. A
request may compute more than those only where nothing can be resumed at the exact position they begin:

    next turn       nothing more: the position where the next turn leaves this prompt is computed when the prompt is
                    rendered, and a snapshot is taken there, though the template drops the reasoning that came after
    exact repeat    nothing more: a snapshot holds all but the last token
    fork, edit      back to the nearest block boundary (attention only), or to the nearest snapshot that was kept
                    (recurrent layers): every turn took one, and where one was let go another is kept before it, at
                    less than twice its distance from the chain's end; the end of the system prompt is always kept
    other session   nothing more: there is a snapshot at the end of the system prompt and the tools
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from application.settings import EngineSettings
from domain.prefix.snapshot_policy import lattice
from tests.support.http.replay.replay import (
    CACHELESS,
    TOOLS,
    Answer,
    CachingServer,
    Message,
    Replay,
    caching_server,
    cairn_server,
    long_chat,
    opening,
    question,
    tool_call,
)
from tests.support.http.servers.fake_service import wait_until
from tests.support.mlx.small_demos import SMALL_DEMOS, SMALL_HYBRID

pytestmark = pytest.mark.slow

MODELS = SMALL_DEMOS  # the embedded ones themselves are replayed in test_replay_exact
GRID = BLOCK = 64  # small, so that prompts need not be long; test_replay_upload uses the defaults
THINKING: dict[str, Any] = {"tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 16}
LONG: dict[str, Any] = {"max_tokens": 4}
ENGINE = EngineSettings(block_size=BLOCK, prefill_grid=GRID)
FLAGS = ("--block-size", str(BLOCK), "--prefill-grid", str(GRID))
NUM_TURNS = 10
TOOL_TURN = 4


@pytest.fixture(scope="module")
def caching(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CachingServer]:
    with caching_server(tmp_path_factory.mktemp("store"), ENGINE, demos) as server:
        yield server


@pytest.fixture(scope="module")
def cacheless(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Computes every prompt from its first token, beside the other server: in a process of its own."""
    flags = (*CACHELESS, "--model-dir", str(demos), *FLAGS)
    with cairn_server(tmp_path_factory.mktemp("home"), *flags) as (_, client):
        yield client


@dataclass
class Conversation:
    """One model's ten turns, played when it is made. `turns[n]`: the messages of turn n and what came of them."""

    cached: Replay
    reference: Replay
    turns: list[tuple[list[Message], Answer]] = field(default_factory=list)
    other_session: list[Answer] = field(default_factory=list)

    def say(self, messages: list[Message]) -> Answer:
        """Ask both servers; their answers must be the same."""
        answer, expected = self.cached.chat(messages), self.reference.chat(messages)
        assert (answer.prompt_ids, answer.output_ids) == (expected.prompt_ids, expected.output_ids)
        assert answer.text == expected.text
        assert expected.num_cached == 0
        return answer

    def play(self) -> None:
        history = opening()
        for number in range(NUM_TURNS):
            history = [*history, question(number)]
            answer = self.say(history)
            self.turns.append((history, answer))
            if number == TOOL_TURN:
                history = [*history, *tool_call("Oslo")]
                self.turns.append((history, answer := self.say(history)))
            history = [*history, {"role": "assistant", "content": answer.text}]
        self.other_session.append(self.say([*opening(), {"role": "user", "content": "Zebras, here?"}]))

    @property
    def longest_turn(self) -> int:
        lengths = [0, *(len(answer.prompt_ids) for _, answer in self.turns)]
        return max(right - left for left, right in pairwise(lengths[1:]))


@pytest.fixture(scope="module", params=MODELS)
def played(request: pytest.FixtureRequest, caching: CachingServer, cacheless: httpx.Client) -> Conversation:
    made = Conversation(Replay(caching.client, request.param, **THINKING), Replay(cacheless, request.param, **THINKING))
    made.play()
    return made


def is_recurrent(model: str) -> bool:
    return model == SMALL_HYBRID


def bound_in_the_middle(answer: Answer, conversation: Conversation, model: str, longest: int) -> int:
    """Most that a fork may compute: see the module docstring. `longest`: length of the longest chain in store."""
    if not is_recurrent(model):
        return answer.num_new + answer.num_shared % BLOCK
    taken = max(0, answer.num_shared - conversation.longest_turn)
    kept = max(conversation.other_session[0].num_shared, longest - 2 * (longest - taken))
    return answer.num_new + answer.num_shared - kept


def test_every_turn_computes_its_new_tokens_and_no_more(played: Conversation) -> None:
    first, *later = [answer for _, answer in played.turns]
    assert first.num_cached == 0
    assert all(answer.num_computed == answer.num_new for answer in later)
    assert all(answer.num_new < 100 < answer.num_cached for answer in later)
    assert len(later[-1].prompt_ids) > 500


def test_the_template_dropped_the_reasoning(played: Conversation) -> None:
    """Or else the turns above would have shown nothing about forks before the prompt's end."""
    for (_, before), (_, after) in pairwise(played.turns):
        assert after.num_shared < len(before.prompt_ids)


def test_another_session_shares_the_system_prompt_and_the_tools(played: Conversation) -> None:
    (answer,) = played.other_session
    assert answer.num_shared > 100
    assert answer.num_computed == answer.num_new < 32


def test_an_exact_repeat_computes_one_token(played: Conversation) -> None:
    model, longest = played.cached.model, len(played.turns[-1][1].prompt_ids)
    for at in (0, 2, TOOL_TURN + 1, NUM_TURNS):
        messages, answer = played.turns[at]
        repeated = played.cached.chat(messages)
        is_thinned = is_recurrent(model) and at < NUM_TURNS  # its snapshot lies in the middle of later turns' chains
        most = bound_in_the_middle(repeated, played, model, longest) if is_thinned else 1
        assert repeated.num_computed <= most
        assert repeated.output_ids == answer.output_ids


@pytest.mark.parametrize("seed", [50, 51])
def test_a_fork_from_the_third_turn(played: Conversation, request: pytest.FixtureRequest, seed: int) -> None:
    model = request.node.callspec.params["played"]
    longest = max(len(answer.prompt_ids) for _, answer in played.turns)
    fork = played.say([*played.turns[2][0][:-1], question(seed)])
    assert fork.num_computed <= bound_in_the_middle(fork, played, model, longest)
    assert played.cached.chat([*played.turns[2][0][:-1], question(seed)]).num_computed == 1


def test_an_edit_in_the_middle(played: Conversation, request: pytest.FixtureRequest) -> None:
    model = request.node.callspec.params["played"]
    messages, last = played.turns[-1]
    at = next(index for index, message in enumerate(messages) if message == question(6))
    edited = [*messages]
    edited[at] = {"role": "user", "content": messages[at]["content"].replace("What do you", "What would you")}
    answer = played.say(edited)
    assert 0 < answer.num_shared < len(last.prompt_ids) - 100
    assert answer.num_computed <= bound_in_the_middle(answer, played, model, len(last.prompt_ids))


def ask_fresh(
    server: CachingServer, reference: httpx.Client, model: str, messages: list[Message]
) -> tuple[Replay, Answer]:
    """A replay that has computed nothing yet, and the right answer to a prompt that nobody has sent yet."""
    return Replay(server.client, model, **LONG), Replay(reference, model, **LONG).chat(messages)


def until_awaited_by(num_followers: int, caching: CachingServer, num_before: int) -> None:
    """Until so many wait for what somebody computes who is held at GRID, after `num_before` who did. Chunk by chunk,
    for they are looked up beside it, and none before that is done: a busy machine would look them up when all is
    computed, and a hybrid has no snapshot then where they go on by themselves."""
    wait_until(lambda: caching.num_streams() == 1 + num_followers, "all to be submitted")
    held_at = GRID
    while len(caching.events.of("PrefixAwaited")) < num_before + num_followers:
        held_at += GRID
        assert held_at < 7 * GRID, "somebody waits for nobody"
        caching.gate.open(next_at=held_at)
        caching.gate.wait_until_reached()
        wait_until(lambda: caching.num_lookups() == 0, "their prompts to be looked up")


@pytest.mark.parametrize("model", MODELS)
def test_three_clients_compute_their_shared_prefix_once(
    caching: CachingServer, cacheless: httpx.Client, model: str
) -> None:
    chats = [long_chat(2, ending) for ending in ("What now?", "Who was it?", "Zebras, then?")]
    replay, first_expected = ask_fresh(caching, cacheless, model, chats[0])
    reference = Replay(cacheless, model, **LONG)
    expected = [first_expected, *(reference.chat(chat) for chat in chats[1:])]
    num_awaited = len(caching.events.of("PrefixAwaited"))
    caching.gate.close_at(GRID)
    with replay.streamed_chat(chats[0]) as owner:
        caching.gate.wait_until_reached()
        with (
            replay.streamed_chat(chats[1]) as one,
            replay.streamed_chat(chats[2]) as two,
        ):
            until_awaited_by(2, caching, num_awaited)
            caching.gate.open()
            answers = [stream.finish() for stream in (owner, one, two)]
    assert [answer.output_ids for answer in answers] == [answer.output_ids for answer in expected]
    assert [answer.num_computed for answer in answers[1:]] == [answer.num_new for answer in answers[1:]]
    assert all(answer.num_new < 32 for answer in answers[1:])


@pytest.mark.parametrize("model", MODELS)
def test_a_cancelled_prefill_resumes_where_it_was(caching: CachingServer, cacheless: httpx.Client, model: str) -> None:
    chat, held_at, left_at = long_chat(3), 3 * GRID, 4 * GRID  # the chunk that was held is computed to its end
    replay, expected = ask_fresh(caching, cacheless, model, chat)
    num_prompt = len(expected.prompt_ids)
    assert 0.5 < left_at / num_prompt < 0.7
    assert left_at not in lattice(num_prompt - 1, GRID), "there would be a snapshot anyway"
    caching.gate.close_at(held_at)
    with replay.streamed_chat(chat) as stream:
        caching.gate.wait_until_reached()
        stream.read_until(f": prefill {held_at}/{num_prompt}")
    wait_until(lambda: caching.num_streams() == 0, "the server to notice that the client left")
    caching.gate.open()
    retried = replay.chat(chat)
    assert retried.output_ids == expected.output_ids
    assert retried.num_computed == num_prompt - left_at
    assert replay.chat(chat).num_computed == 1
