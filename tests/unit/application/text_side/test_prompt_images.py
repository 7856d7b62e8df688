"""Which images of a prompt are measured, kept for the next turn, refused, or left out."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from adapters.fake.vision import ToyImages, toy_image
from adapters.web.image_fetcher import ImageFetcher
from application.ports.vision import ImageRows, ProcessedImage
from application.services.lane import OWNER
from application.services.text_side.answers.prompt_images import PromptImages
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import InvalidRequest
from domain.ids import ModelId
from domain.models.capability import ModelUse
from domain.models.model_card import ModelSource
from domain.request.chat import Role, message_of
from domain.request.media import Detail, Image
from domain.request.request import ChatPrompt
from tests.support.patience import PATIENCE_S

CAT, DOG, BROKEN = toy_image(1, 3, "cat", "a"), toy_image(2, 2, "dog", "b"), Image(b"broken", field="c")


class Counting(ToyImages):
    def __init__(self) -> None:
        super().__init__()
        self.measured: list[bytes] = []

    def process(self, image: Image) -> ProcessedImage:
        self.measured.append(image.data)
        return super().process(image)


def served(images: ToyImages | None, id: str = "m", unseen: str = "") -> ServedModel:
    source = ModelSource(ModelId(id), "", use=ModelUse(unseen=unseen))
    return ServedModel(source, FakeTokenizer(), FakeModel(source, FakeOptions()).description, "", images=images)


def chat(*pieces: str | Image) -> ChatPrompt:
    return ChatPrompt((message_of(Role.USER, pieces),))


def run(work: Callable[[PromptImages], Coroutine[Any, Any, Any]], images: PromptImages | None = None) -> Any:
    used = images or PromptImages(ImageFetcher(lambda: ()))

    async def running() -> Any:
        try:
            return await work(used)
        finally:
            used.close()

    return asyncio.run(running())


def test_an_image_is_measured_once_for_its_model_and_salt() -> None:
    counting = Counting()
    model, other = served(counting), served(counting, id="other")

    async def work(images: PromptImages) -> ImageRows | None:
        for _ in range(3):
            _, rows = await images.shown(chat("a", CAT, DOG, CAT), model, "salt")
        assert counting.measured == [CAT.data, DOG.data]
        await images.shown(chat(CAT), model, "another salt")
        await images.shown(chat(CAT), other, "salt")
        await images.shown(chat(Image(CAT.data, Detail.LOW)), model, "salt")
        assert counting.measured == [CAT.data, DOG.data, *[CAT.data] * 3]
        return rows

    rows = run(work)
    assert rows is not None
    assert set(rows.tokens) == {CAT.digest, DOG.digest}


def test_the_least_recently_used_are_forgotten_first() -> None:
    counting = Counting()

    async def work(images: PromptImages) -> None:
        for image in (CAT, DOG, CAT, toy_image(1, 1), CAT, DOG):
            await images.shown(chat(image), served(counting), "")

    run(work, PromptImages(ImageFetcher(lambda: ()), max_kept=2))
    assert counting.measured == [CAT.data, DOG.data, toy_image(1, 1).data, DOG.data]


@pytest.mark.parametrize("role", [Role.USER, Role.SYSTEM])
def test_what_cannot_be_shown_is_refused_behind_the_last_answer(role: Role) -> None:
    said = (message_of(Role.USER, ["x"]), message_of(Role.ASSISTANT, ["y"]), message_of(role, [BROKEN]))
    with pytest.raises(InvalidRequest) as refused:
        run(lambda images: images.shown(ChatPrompt(said), served(ToyImages()), ""))
    assert refused.value.param == "c"


def test_what_cannot_be_shown_is_left_out_before_the_last_answer_and_in_results_of_tools() -> None:
    said = (
        message_of(Role.USER, ["x", BROKEN, "z", CAT]),
        message_of(Role.ASSISTANT, ["y"]),
        message_of(Role.TOOL, [BROKEN]),
    )
    prompt, _ = run(lambda images: images.shown(ChatPrompt(said), served(ToyImages()), ""))
    asked, _, result = prompt.messages
    assert asked.content.startswith("x\n[image left out: it is no toy image")
    assert asked.content.endswith("]\nz")
    assert list(asked.images) == [CAT]
    assert result.content.startswith("[image left out: ")


@pytest.mark.parametrize(
    ("unseen", "why"), [("", "it reads text only"), ("Pillow is not installed", "Pillow is not installed")]
)
def test_a_model_that_does_not_see_says_why(unseen: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"m cannot see images: {why}; name a model"):
        run(lambda images: images.shown(chat(CAT), served(None, unseen=unseen), ""))


def test_a_refused_image_is_refused_again_without_a_look_at_it() -> None:
    counting, moved = Counting(), Image(BROKEN.data, field="elsewhere")

    async def work(images: PromptImages) -> None:
        for image in (BROKEN, moved):
            with pytest.raises(InvalidRequest, match=f"^{image.field}: ") as refused:
                await images.shown(chat(image), served(counting), "salt")
            assert refused.value.param == image.field
        assert counting.measured == [BROKEN.data]
        with pytest.raises(InvalidRequest):
            await images.shown(chat(BROKEN), served(counting), "another salt")
        assert counting.measured == [BROKEN.data] * 2

    run(work)


def test_arrays_are_kept_until_they_are_wanted_and_then_made_again() -> None:
    counting = Counting()

    async def work(images: PromptImages) -> None:
        model = served(counting)
        prompt, rows = await images.shown(chat(CAT, DOG), model, "")
        assert images.prepared_bytes == 8 * (3 + 4)
        wanted = images.wanted(prompt, rows, model, "")
        assert wanted is not None
        expected = {ToyImages().process(image).tokens.digest: image for image in (CAT, DOG)}
        assert set(wanted.by_digest) == set(expected)
        for number in (2, 4):  # processed in sum, after each round
            for digest in expected:
                assert await wanted.prepare(digest) == ToyImages().process(expected[digest]).prepared
            assert len(counting.measured) == number
        assert images.prepared_bytes == 0

    run(work)


def test_the_oldest_arrays_are_dropped_above_the_bound() -> None:
    counting = Counting()

    async def work(images: PromptImages) -> None:
        model = served(counting)
        prompt, rows = await images.shown(chat(CAT, DOG), model, "")
        assert images.prepared_bytes == 8 * 4
        wanted = images.wanted(prompt, rows, model, "")
        assert wanted is not None
        for digest in wanted.by_digest:
            await wanted.prepare(digest)
        assert counting.measured == [CAT.data, DOG.data, CAT.data]

    run(work, PromptImages(ImageFetcher(lambda: ()), max_prepared_bytes=8 * 4))


def test_a_client_with_costly_images_leaves_a_thread_to_others() -> None:
    gate, began = threading.Event(), threading.Semaphore(0)

    class Slow(ToyImages):
        def process(self, image: Image) -> ProcessedImage:
            if b"costly" in image.data:
                began.release()
                assert gate.wait(PATIENCE_S)
            return super().process(image)

    async def work(images: PromptImages) -> None:
        OWNER.set("attacker")
        costly = [chat(toy_image(1, 1, f"costly {number}")) for number in range(9)]
        attacks = [asyncio.create_task(images.shown(one, served(Slow()), "")) for one in costly]
        for _ in range(2):
            assert await asyncio.to_thread(began.acquire, timeout=PATIENCE_S)
        OWNER.set("other")
        async with asyncio.timeout(PATIENCE_S):
            await images.shown(chat(CAT), served(Slow()), "")
        assert not any(attack.done() for attack in attacks)
        gate.set()
        await asyncio.gather(*attacks)

    try:
        run(work)
    finally:
        gate.set()
