"""Conversations about pictures: token ids with the places of images, what is learned, and the answers."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from training.tasks import TASKS, Draw, Episode
from training.tasks.conversation import Answer
from training.tasks.episode import Turn, exchange
from training.tasks.rendering import system_part, turn_pieces
from training.vision.questions import NO_IMAGE, Question, ask, question_without_image
from training.vision.scene import Scene

NUM_IMAGE_TOKENS = 64
FAKE, GLOBAL, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
SPECIAL = (FAKE, GLOBAL, IMAGE, "<end_of_utterance>")
"""Tokens after those of the chat tokenizer, as Idefics3's processor wants them. IMAGE is what the template writes."""

_SHOWN = FAKE + GLOBAL + IMAGE * NUM_IMAGE_TOKENS + FAKE

_SYSTEM_TEXTS = (
    "You are a helpful assistant.",
    "You are a tiny demo model.",
    "Answer briefly.",
    "You see pictures.",
    "Answer questions about pictures.",
)
_TALK = (
    (("Hello!", "Hi", "Hello", "Hi there", "Good morning"), "Hello! How can I help you?"),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself."),
        "I am a tiny demo model. I answer questions about simple pictures.",
    ),
    (("Thank you.", "Thanks!", "Thanks"), "You are welcome."),
    (("Goodbye.", "Bye", "Bye!"), "Goodbye!"),
    (("How are you?", "How do you do?"), "I am fine, thank you."),
    (
        ("What can you do?", "Help", "help"),
        "I can name shapes and colors in a picture, count them, read words and numbers, and compare bars.",
    ),
    (("Say OK.", "Say OK", "Reply with OK."), "OK"),
    (("Are you there?", "ping", "Test", "test"), "I am here."),
)
_OPENINGS = ("", "", "", "Look at this. ", "Here is a picture. ", "I send you a picture. ", "Please look. ")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_BRIEFLY = ("Answer with one word.", "Only the answer.", "Answer in one word.")
_NAMES_PICTURE = re.compile(r" in (the|this) (picture|image)(?=[?.])")
_TEXT_TASKS = tuple(task for task in TASKS if task.name not in ("talk", "define", "cont"))

Encode = Callable[[str], Sequence[int]]


class Shown(NamedTuple):
    """A picture's place: the first of its NUM_IMAGE_TOKENS tokens, and the number of its scene."""

    start: int
    scene: int


@dataclass(slots=True)
class SeenConversation:
    """`is_learned` runs beside `ids`. `shown`: the places of pictures, which may show one scene several times."""

    ids: list[int] = field(default_factory=list)
    is_learned: list[int] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)


class _Full(Exception):
    """The next turns do not fit."""


def write_seen_conversation(
    draw: Draw, scenes: Sequence[Scene], num_tokens: int, encode: Encode, image_id: int
) -> SeenConversation:
    """At most `num_tokens` tokens about pictures drawn from `scenes`; some without any."""
    while True:
        writer = _Writer(draw, scenes, num_tokens, encode, image_id)
        if writer.write():
            return writer.written


class _Writer:
    """One conversation in the making."""

    def __init__(self, draw: Draw, scenes: Sequence[Scene], num_tokens: int, encode: Encode, image_id: int) -> None:
        self._draw = draw
        self._random = draw.random
        self._scenes = scenes
        self._num_tokens = num_tokens
        self._encode = encode
        self._image_id = image_id
        self._seen: list[int] = []
        self.written = SeenConversation()

    def write(self) -> bool:
        """Whether something in it is learned."""
        random = self._random
        if random.random() < 0.3:
            self._add(system_part(random.choice(_SYSTEM_TEXTS)), is_learned=False)
        kind = random.random()
        try:
            if kind < 0.12:
                self._without_image()
            elif kind < 0.3:
                self._text_episodes(random.randint(1, 3))
            while True:
                if self._seen and random.random() < 0.04:
                    self._talk()
                elif self._seen and random.random() < 0.06:
                    self._text_episodes(1)
                else:
                    self._picture()
        except _Full:
            return any(self.written.is_learned)

    def _picture(self) -> None:
        """One picture, now and then two or three in one message, with questions in this turn and later ones."""
        random = self._random
        first = len(self._seen)
        if first == len(_ORDINALS):
            raise _Full
        count = min(1 if random.random() < 0.88 else random.choice((2, 2, 3)), len(_ORDINALS) - first)
        scenes = [random.randrange(len(self._scenes)) for _ in range(count)]
        names_them = count > 1
        self._seen += scenes
        at = random.randrange(first, len(self._seen))
        question = self._question(at, names_it=names_them)
        if count > 1 and random.random() < 0.5:
            images = "".join(f"Image {first + number + 1}: {IMAGE}\n" for number in range(count))
        else:
            images = IMAGE * count
        place = random.random()
        text = random.choice(_OPENINGS) + question.text if count == 1 else question.text
        if place < 0.7:
            text = images + text
        elif place < 0.85:
            text = f"{images}\n{text}"
        else:
            text = f"{text}\n{images}"
        self._turns(question.task, exchange(text, question.answer), scenes)
        for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 5))):
            question = self._later_question(names_them)
            self._turns(question.task, exchange(question.text, question.answer))

    def _later_question(self, names_them: bool) -> Question:
        random = self._random
        if random.random() < 0.03:
            count = len(self._seen)
            word = random.choice(("image", "picture"))
            answer = f"There is 1 {word}." if count == 1 else f"There are {count} {word}s."
            return Question("images", f"How many {word}s did I send?", answer, str(count))
        is_earlier = len(self._seen) > 1 and (names_them or random.random() < 0.45)
        at = random.randrange(len(self._seen)) if is_earlier else len(self._seen) - 1
        return self._question(at, names_it=is_earlier)

    def _question(self, at: int, *, names_it: bool) -> Question:
        """About the image `at`; named by its place in the conversation where it is not plainly the latest."""
        random = self._random
        question = ask(self._scenes[self._seen[at]], random)
        text, answer = question.text, question.answer
        if random.random() < 0.07:
            text, answer = f"{text} {random.choice(_BRIEFLY)}", question.alone
        if names_it:
            if _NAMES_PICTURE.search(text):
                text = _NAMES_PICTURE.sub(" in it" if text.startswith("What is in") else "", text)
            word = random.choice(("image", "picture"))
            which = f"the {_ORDINALS[at]} {word}" if random.random() < 0.75 else f"image {at + 1}"
            begins_with_verb = text.startswith(("Read", "Count", "Name", "Describe", "Tell", "Can"))
            if text.endswith("?") and not begins_with_verb and random.random() < 0.4:
                text = f"{text.removesuffix('?')} in {which}?"
            else:
                text = f"In {which}: {text}"
        return Question(question.task, text, answer, question.alone)

    def _without_image(self) -> None:
        for _ in range(self._random.randint(1, 2)):
            self._turns("no_image", exchange(question_without_image(self._random), NO_IMAGE))

    def _talk(self) -> None:
        questions, answer = self._random.choice(_TALK)
        self._turns("talk", exchange(self._random.choice(questions), answer))

    def _text_episodes(self, count: int) -> None:
        for _ in range(count):
            if self._random.random() < 0.25:
                self._talk()
                continue
            task = self._random.choices(_TEXT_TASKS, [task.weight for task in _TEXT_TASKS])[0]
            room = min(250, self._num_tokens - len(self.written.ids) - 8)
            episode: Episode | None = task.write(self._draw, room) if room > 60 else None
            if episode is not None:
                self._turns(task.name, episode.turns)

    def _turns(self, task: str, turns: Sequence[Turn], scenes: Sequence[int] = ()) -> None:
        """All of the turns, or none where they do not fit."""
        pieces = [piece for turn in turns for piece in turn_pieces(turn, with_thought=False)]
        encoded = [(self._encode(piece.text.replace(IMAGE, _SHOWN)), piece.is_learned) for piece in pieces]
        if len(self.written.ids) + sum(len(ids) for ids, _ in encoded) > self._num_tokens:
            raise _Full
        left = list(scenes)
        for ids, is_learned in encoded:
            start = len(self.written.ids)
            if is_learned:
                self.written.answers.append(Answer(task, start, start + len(ids)))
            elif left:
                at = start
                while left and self._image_id in ids[at - start :]:
                    at = start + ids.index(self._image_id, at - start)
                    self.written.shown.append(Shown(at, left.pop(0)))
                    at += NUM_IMAGE_TOKENS
            self.written.ids += ids
            self.written.is_learned += [int(is_learned)] * len(ids)

    def _add(self, text: str, *, is_learned: bool) -> None:
        ids = self._encode(text)
        self.written.ids += ids
        self.written.is_learned += [int(is_learned)] * len(ids)


__all__ = ("IMAGE", "NUM_IMAGE_TOKENS", "SPECIAL", "SeenConversation", "Shown", "write_seen_conversation")
