"""Conversations of whole episodes that fill a given number of tokens, with the tokens to learn and the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from training.tasks.draw import Draw
from training.tasks.episode import Episode, Facts, exchange
from training.tasks.mixture import KEY_VALUE, NEEDLE, TASKS
from training.tasks.rendering import system_part, turn_pieces
from training.tasks.tool_use import TOOLS, tool_definition, tool_use

Encode = Callable[[str], Sequence[int]]

_SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You are a tiny demo model.",
    "Answer briefly.",
    "You are a helpful assistant. Answer briefly.",
    "Be helpful.",
)
_LATE_QUESTION = "late_q"


class Answer(NamedTuple):
    """Token range [start, end) of what the assistant says, and the task it belongs to."""

    task: str
    start: int
    end: int


@dataclass(slots=True)
class Conversation:
    """`is_learned` runs beside `ids`: 1 for the assistant's tokens."""

    ids: list[int] = field(default_factory=list)
    is_learned: list[int] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def append(self, other: "Conversation") -> None:
        """Add the tokens of an episode; its answers count from the start of this conversation already."""
        self.ids += other.ids
        self.is_learned += other.is_learned
        self.answers += other.answers


def write_conversation(draw: Draw, num_tokens: int, encode: Encode) -> Conversation:
    """At most `num_tokens` tokens. `encode` must be that of the tokenizer the model will have."""
    return _Writer(draw, num_tokens, encode).write()


def plain_text(draw: Draw, num_tokens: int, encode: Encode, separator_id: int) -> Conversation:
    """Quotations, one after the other, all of it learned."""
    ids = [separator_id]
    while len(ids) < num_tokens:
        ids += [*encode(draw.passage(4000)), separator_id]
    return Conversation(ids[:num_tokens], [1] * num_tokens)


class _Writer:
    """One conversation in the making."""

    def __init__(self, draw: Draw, num_tokens: int, encode: Encode) -> None:
        self._draw = draw
        self._num_tokens = num_tokens
        self._encode = encode
        self._tools: list[str] | None = None
        self._known: dict[str, str | None] = {}
        self._askable: list[tuple[Facts, str]] = []
        self._is_thinking = False

    def write(self) -> Conversation:
        random = self._draw.random
        conversation = self._opening()
        is_single = random.random() < 0.25
        self._is_thinking = random.random() < 0.12
        num_failures = 0
        is_first = True
        while num_failures < 3 and len(conversation.ids) < self._num_tokens - 40:
            room = self._num_tokens - len(conversation.ids) - 8
            task, episode = self._episode(room, is_first)
            written = self._encoded(task, episode, room, len(conversation.ids)) if episode else None
            if episode is None or written is None:
                num_failures += 1
                continue
            conversation.append(written)
            is_first = False
            self._remember(episode)
            if self._is_thinking or (is_single and len(conversation.ids) > self._num_tokens * 0.3):
                break  # the template drops the thought of an earlier answer, so a chat with one ends there
        return conversation

    def _opening(self) -> Conversation:
        """The system part, drawn again while it would fill half the conversation."""
        random = self._draw.random
        while True:
            has_tools = random.random() < 0.14
            self._tools = random.sample(list(TOOLS), random.randint(1, 3)) if has_tools else None
            system = self._system_text() if random.random() < 0.5 else None
            text = system_part(system, [tool_definition(name) for name in self._tools or ()])
            ids = list(self._encode(text)) if text else []
            if len(ids) <= self._num_tokens * 0.5:
                return Conversation(ids, [0] * len(ids))

    def _system_text(self) -> str:
        random = self._draw.random
        text = random.choice(_SYSTEM_TEXTS)
        if random.random() < 0.1:
            text += " " + self._draw.passage(random.choice((100, 400, 1000)))
        return text

    def _episode(self, room: int, is_first: bool) -> tuple[str, Episode | None]:
        """A task's name and its episode, if there was room for one."""
        random = self._draw.random
        if self._tools is not None:
            return "tools_ep", tool_use(self._draw, room, self._tools)
        task = random.choices(TASKS, [task.weight for task in TASKS])[0]
        if is_first and self._num_tokens >= 1024 and random.random() < 0.6:
            task = random.choice((KEY_VALUE, NEEDLE))
        if self._askable and random.random() < 0.3:
            return _LATE_QUESTION, self._late_question()
        return task.name, task.write(self._draw, room)

    def _late_question(self) -> Episode | None:
        """Ask again for a fact given before; not for one whose key was given twice."""
        facts, key = self._draw.random.choice(self._askable)
        value = self._known[key]
        return Episode(exchange(facts.ask(key), value, f"I look for {key}.")) if value else None

    def _encoded(self, task: str, episode: Episode, room: int, start: int) -> Conversation | None:
        """The episode's leading turns up to one that is far too long; None when they do not fit or teach nothing."""
        written = Conversation()
        last = len(episode.turns) - 1
        for index, turn in enumerate(episode.turns):
            if len(turn.text) > (room + 50) * 8:
                break
            for piece in turn_pieces(turn, with_thought=self._is_thinking and index == last):
                ids = self._encode(piece.text)
                if piece.is_learned:
                    at = start + len(written.ids)
                    written.answers.append(Answer(task, at, at + len(ids)))
                written.ids += ids
                written.is_learned += [int(piece.is_learned)] * len(ids)
            if start + len(written.ids) > self._num_tokens:
                return None
        return written if any(written.is_learned) else None

    def _remember(self, episode: Episode) -> None:
        facts = episode.facts
        if facts is None:
            return
        for key, value in zip(facts.keys, facts.values, strict=True):
            self._known[key] = None if key in self._known else value
        chosen = self._draw.random.sample(facts.keys, min(4, len(facts.keys)))
        self._askable += [(facts, key) for key in chosen]


__all__ = ("Answer", "Conversation", "plain_text", "write_conversation")
