"""The compute port's contract on images: whatever way a state came about, the tokens after an image are the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from adapters.fake.engine import FakeEngine
from adapters.fake.options import LAYOUTS, FakeOptions
from adapters.fake.vision import ToyImages, toy_image
from adapters.mlx.vlm import library
from application.ports.compute import DecodeStart, Images, LoadedModel
from application.ports.vision import ImageProcessor
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.media import Image
from tests.support.engines.finish_load import finish_load
from tests.support.engines.toy_prompts import Parts, prompt_of
from tests.support.mlx.contract_models import GREEDY
from tests.support.mlx.vision.tiny_seers import load_seeing, picture
from tests.support.stores.state_replay import BLOCK, new_id

NUM_NEW = 8


@dataclass
class Seeing:
    """A model that sees, and two images of it with equally many tokens."""

    model: LoadedModel
    processor: ImageProcessor
    images: tuple[Image, Image]
    encode: Callable[[Parts], EncodedPrompt]

    def prompt(self, number: int = 0) -> EncodedPrompt:
        return self.encode(("a text before: ", self.images[number], " and one behind it"))

    def features(self, number: int = 0) -> Images:
        tokens, prepared = self.processor.process(self.images[number])
        return {tokens.digest: self.model.encode_image(prepared)}

    def open(self, prompt: EncodedPrompt) -> SequenceId:
        id = new_id()
        self.model.open(id)
        self.model.set_media(id, prompt.media)
        return id

    def feed(self, id: SequenceId, prompt: EncodedPrompt, ends: Sequence[int], images: Images) -> None:
        """Computes the prompt in chunks that end here, from wherever the sequence is."""
        for end in ends:
            if end > (start := self.model.position(id)):
                self.model.prefill(id, prompt.token_ids[start:end], images=images)

    def answer(self, id: SequenceId, prompt: EncodedPrompt, images: Images) -> list[int]:
        """Computes the rest and decodes alone."""
        rest, start = prompt.token_ids[self.model.position(id) :], DecodeStart(prompt.token_ids, GREEDY, seed=1)
        self.model.start_decode(id, rest, start, images=images)
        output = [self.model.decode([id])[0].token_ids[0] for _ in range(NUM_NEW)]
        self.model.close([id])
        return output

    def plain(self, number: int = 0) -> list[int]:
        """The answer of the whole prompt in one chunk."""
        prompt = self.prompt(number)
        return self.answer(self.open(prompt), prompt, self.features(number))


def _toy(layout: str, *, runs_ahead: bool) -> Callable[[], Seeing]:
    options = FakeOptions(LAYOUTS[layout], runs_ahead=runs_ahead, eos_every=0, images=ToyImages())
    load = FakeEngine(default=options).load
    return lambda: Seeing(
        finish_load(load(ModelSource(ModelId(layout), "fake"), LoadOptions())),
        ToyImages(),
        (toy_image(5, 8, "cat"), toy_image(5, 8, "dog")),
        prompt_of,
    )


def _tiny(name: str) -> Callable[[], Seeing]:
    def load() -> Seeing:
        with TemporaryDirectory() as folder:
            model, processor, encode = load_seeing(name, Path(folder))
        return Seeing(model, processor, (Image(picture(1)), Image(picture(2))), encode)

    return load


SEEING: dict[str, Callable[[], Seeing]] = {
    f"fake-{name}": _toy(name, runs_ahead=index % 2 == 0) for index, name in enumerate(LAYOUTS) if name != "unsupported"
}
if library.missing() == "":
    SEEING |= {f"mlx-{name}": _tiny(name) for name in ("idefics3", "qwen3_vl")}


@pytest.fixture(scope="module", params=SEEING)
def seeing(request: pytest.FixtureRequest) -> Seeing:
    return SEEING[request.param]()


def test_what_is_in_an_image_decides_what_follows(seeing: Seeing) -> None:
    assert seeing.plain(0) == seeing.plain(0) != seeing.plain(1)
    assert seeing.prompt(0).token_ids == seeing.prompt(1).token_ids


@pytest.mark.exact
def test_chunks_may_cut_an_image_anywhere(seeing: Seeing) -> None:
    prompt, images = seeing.prompt(), seeing.features()
    (span,) = prompt.media
    for cuts in ([span.start], [span.start + 1], [span.start + 7, span.end - 1], [span.end], range(1, span.end, 9)):
        id = seeing.open(prompt)
        seeing.feed(id, prompt, cuts, images)
        assert seeing.answer(id, prompt, images) == seeing.plain(), cuts


@pytest.mark.exact
def test_a_state_in_the_middle_of_an_image_is_restored(seeing: Seeing) -> None:
    """And one behind it, which needs no features: only the places of the tokens derive from the image."""
    prompt, images, model = seeing.prompt(), seeing.features(), seeing.model
    (span,) = prompt.media
    for position in (BLOCK, span.start + 9, span.end, span.end + 3):
        id = seeing.open(prompt)
        ends = [*range(BLOCK, position, BLOCK), position]
        seeing.feed(id, prompt, ends, images)
        blocks = model.capture_blocks(id, [(at, at + BLOCK) for at in range(0, position - BLOCK + 1, BLOCK)])
        snapshot = model.capture_snapshot(id, len(blocks) * BLOCK)
        model.close([id])
        restored = seeing.open(prompt)
        model.restore(restored, position, blocks, snapshot)
        needed = images if position < span.end else {}
        assert seeing.answer(restored, prompt, needed) == seeing.plain(), position


@pytest.mark.exact
def test_a_state_that_is_taken_over_keeps_the_places_of_its_taker(seeing: Seeing) -> None:
    prompt, images, model = seeing.prompt(), seeing.features(), seeing.model
    id = seeing.open(prompt)
    seeing.feed(id, prompt, [prompt.media[0].end + 2], images)
    position = model.position(id)
    left = model.keep_live(id)
    if left is None:
        pytest.skip("this model leaves no state")
    taker = seeing.open(prompt)
    model.take_over(taker, id, position)
    assert seeing.answer(taker, prompt, {}) == seeing.plain()


@pytest.mark.exact
def test_rows_with_and_without_images_decode_together(seeing: Seeing) -> None:
    """The places of the tokens behind an image are shifted in its own row only."""
    model, text = seeing.model, seeing.encode("only words, some more than the other has")
    prompts = [(seeing.prompt(0), seeing.features(0)), (text, {}), (seeing.prompt(1), seeing.features(1))]
    ids = [seeing.open(prompt) if prompt.media else new_id() for prompt, _ in prompts]
    model.open(ids[1])
    for id, (prompt, images) in zip(ids, prompts, strict=True):
        model.start_decode(id, prompt.token_ids, DecodeStart(prompt.token_ids, GREEDY, seed=1), images=images)
    found = list[list[int]]([[] for _ in ids])
    for _ in range(NUM_NEW):
        for at, result in enumerate(model.decode(ids)):
            found[at] += result.token_ids
    model.close(ids)
    alone = new_id()
    model.open(alone)
    assert found == [seeing.plain(0), seeing.answer(alone, text, {}), seeing.plain(1)]


def test_an_image_is_placed_in_an_empty_sequence_only(seeing: Seeing) -> None:
    prompt = seeing.prompt()
    id = seeing.open(prompt)
    seeing.feed(id, prompt, [3], {})
    with pytest.raises(RuntimeError):
        seeing.model.set_media(id, prompt.media)
    seeing.model.close([id])
