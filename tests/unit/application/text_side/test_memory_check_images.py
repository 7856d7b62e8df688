"""The memory check of prompts with images: what they take besides their tokens is refused with its numbers."""

import asyncio
from typing import Any

import pytest

from adapters.fake import FakeModel, FakeOptions, ToyImages, toy_image
from application.ports.engine import EngineStatus
from application.services.text_side.answers.memory_check import MemoryCheck
from domain.errors import MemoryBusy, PrefillMemoryExceeded
from domain.ids import ModelId, RequestId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from domain.models.model_card import ModelSource
from domain.request.request import GenerationRequest, TextPrompt
from domain.request.sampling import StopRules
from tests.support.engines.toy_prompts import Parts, prompt_of

MODEL = FakeModel(ModelSource(ModelId("toy"), "nowhere"), FakeOptions(images=ToyImages(), weight_bytes=0)).description
REQUEST = GenerationRequest(RequestId("r"), MODEL.id, TextPrompt("x"), stop=StopRules(4, min_tokens=4))
CHUNK = 32


class Alone:
    """An engine with so much memory and nothing in it, and a pool with other models of `leased_bytes`."""

    def __init__(self, total_bytes: int, leased_bytes: int = 0) -> None:
        self._leased_bytes = leased_bytes
        limits = MemoryLimits(total_bytes, total_bytes, total_bytes, total_bytes)
        self._status = EngineStatus(
            is_alive=True,
            is_busy=False,
            last_progress_ns=0,
            last_step_ns=0,
            num_waiting=0,
            num_running=0,
            limits=limits,
            ledger=MemoryLedger(limits=limits),
            prefill_chunk=CHUNK,
        )

    def status(self) -> EngineStatus:
        return self._status

    def fixed_bytes(self, _id: ModelId, *, with_leased: bool) -> int:
        return with_leased * self._leased_bytes

    async def make_room(self, _num_bytes: int) -> None:
        """There is nothing to unload."""


def check(parts: Parts, total_bytes: int, leased_bytes: int = 0) -> int:
    alone: Any = Alone(total_bytes, leased_bytes)
    memory = MemoryCheck(alone, alone)
    return asyncio.run(memory.answer_length(REQUEST, prompt_of(parts), MODEL, 4))


def needed(parts: Parts) -> int:
    """Returns the least memory with which the request passes."""
    low, high = 0, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        try:
            check(parts, middle)
            high = middle
        except PrefillMemoryExceeded:
            low = middle
    return high


def test_an_image_takes_pixels_features_and_a_pass_of_the_tower() -> None:
    image, num_tokens, word = toy_image(12, 12, "cat"), 156, 8
    text = "x" * num_tokens
    beyond = needed((image, "what?")) - needed((text, "what?"))
    pixels, tower, features = word * num_tokens, word * num_tokens, word * (2 * num_tokens + CHUNK)
    assert beyond == pixels + tower + features - word * 2 * CHUNK, "the copy of a chunk's state comes after the pass"
    many = needed((image, image, image, "what?")) - needed((text, text, text, "what?"))
    assert many - beyond == word * (num_tokens + 2 * CHUNK), "pixels of one more image and two chunks, at most"


def test_a_refusal_names_the_tokens_of_the_largest_image() -> None:
    parts = ("look: ", toy_image(2, 3, "cat"), toy_image(12, 12, "dog"), "?")
    with pytest.raises(PrefillMemoryExceeded) as refused:
        check(parts, 4_000)
    assert refused.value.message.startswith(
        "prompt has 171 tokens, 156 of them in the largest image; with an answer of 4 they need about "
    )
    assert refused.value.estimated_bytes == needed(parts)
    with pytest.raises(MemoryBusy, match="prompt has 171 tokens, 156 of them in the largest image; with an answer"):
        check(parts, needed(parts) + 100, leased_bytes=200)
