"""Prompts as clients send them: fresh, the next turn, an edit in the middle, a fork, the same again. Where the models
see, some hold images: the same again, others of equal size, and one that cannot be prepared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from adapters.fake import ToyImages, toy_image
from application.ports.tokenizer import EncodedPrompt
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.prefix.prompt_content import ForkKind, ForkPoint, MediaSpan

VOCAB = 1 << 20
MAX_PROMPT = 260

FIRST_IMAGE = 1 << 21
"""In a conversation an image is one number, so that no edit cuts it."""

TOYS = ToyImages()
IMAGES = (
    *(toy_image(2, 3, content) for content in ("cat", "dog", "cat")),
    *(toy_image(5, 6, content) for content in ("cat", "owl")),
    toy_image(1, 1, "dot"),
    toy_image(2, 3, "broken"),
)
BY_DIGEST = {TOYS.process(image).tokens.digest: image for image in IMAGES}


def is_broken(prompt: EncodedPrompt) -> bool:
    """Returns whether the prompt can never be computed."""
    return any(b":broken" in BY_DIGEST[span.digest].data for span in prompt.media)


SALTS = ("", "", "alice", "bob")


@dataclass
class Conversation:
    """What was said so far, where its turns ended, and to whom it belongs."""

    tokens: list[int]
    turns: list[int]
    model: ModelId
    salt: str


class Workload:
    """Draws prompts. Deterministic for a given Random."""

    def __init__(self, random: Random, models: Sequence[ModelId], *, sees: bool = False) -> None:
        self._random = random
        self._image_rate = 0.3 if sees else 0.0
        self._models = models
        self._systems = [self._text(random.randint(5, 70)) for _ in range(2)]
        self._talks: list[Conversation] = []

    def draw(self, number: int) -> list[tuple[Conversation, EncodedPrompt]]:
        """What the next requests ask: one prompt, and variations of it."""
        first = self._next()
        talks = [first, *(self._changed(first, self._random.choice(("repeat", "fork", "next"))) for _ in range(number))]
        return [(talk, self._encoded(talk)) for talk in talks[:number]]

    def _next(self) -> Conversation:
        random = self._random
        kind = random.choice(("fresh", "next", "next", "edit", "fork", "repeat")) if self._talks else "fresh"
        if kind == "fresh":
            system = random.choice(self._systems)
            tokens = [*system, *self._text(random.randint(2, 90))]
            talk = Conversation(tokens, [len(system)], random.choice(self._models), random.choice(SALTS))
        else:
            talk = self._changed(random.choice(self._talks), kind)
        if random.random() < 0.1:
            talk.model = random.choice(self._models)
        if random.random() < 0.05:
            talk.salt = random.choice(SALTS)
        del talk.tokens[MAX_PROMPT:]
        self._talks.append(talk)
        del self._talks[:-8]
        return talk

    def answered(self, talk: Conversation, answer: list[int]) -> None:
        """A client has an answer; its next turn builds on it."""
        tokens = [*talk.tokens, *answer]
        self._talks.append(replace(talk, tokens=tokens, turns=[*talk.turns, len(tokens)]))
        del self._talks[:-8]

    def _changed(self, talk: Conversation, kind: str) -> Conversation:
        random = self._random
        tokens = list(talk.tokens)
        if kind == "next":
            turns = [*talk.turns, len(tokens)]
            return replace(talk, tokens=[*tokens, *self._text(random.randint(1, 40))], turns=turns)
        if kind == "edit":
            at = random.randrange(len(tokens))
            tokens[at] = random.randrange(VOCAB)
            return replace(talk, tokens=tokens)
        if kind == "fork":
            at = random.randint(1, len(tokens))
            tokens[at:] = self._text(random.randint(1, 40))
        return replace(talk, tokens=tokens)

    def _encoded(self, talk: Conversation) -> EncodedPrompt:
        length = len(talk.tokens)
        found = {at: ForkKind.TURN for at in talk.turns[1:] if at <= length}
        if talk.turns and talk.turns[0] <= length:
            found[talk.turns[0]] = ForkKind.SYSTEM_END
        found[max(1, length - self._random.randint(0, 4))] = ForkKind.NEXT_TURN
        ids, media, places = list[int](), list[MediaSpan](), list[int]()
        for token in talk.tokens:
            if token < FIRST_IMAGE:
                ids.append(token)
            else:
                measured = TOYS.process(IMAGES[token - FIRST_IMAGE]).tokens
                media.append(measured.placed(len(ids), len(media) + 1))
                ids += measured.token_ids
            places.append(len(ids))
        return EncodedPrompt(
            IdRow(ids), tuple(ForkPoint(places[at - 1], found[at]) for at in sorted(found)), tuple(media)
        )

    def _text(self, length: int) -> list[int]:
        found = [self._random.randrange(VOCAB) for _ in range(length)]
        while self._image_rate and self._random.random() < self._image_rate:
            is_good = self._random.random() < 0.97
            number = self._random.randrange(len(IMAGES) - 1) if is_good else len(IMAGES) - 1
            found.insert(self._random.randint(0, len(found)), FIRST_IMAGE + number)
        return found
