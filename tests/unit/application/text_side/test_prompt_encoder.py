"""Where prompts are encoded: long texts one at a time, and short ones never behind them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from adapters.web.image_fetcher import ImageFetcher
from application.ports.tokenizer import EncodedPrompt
from application.ports.vision import ImageRows
from application.services.lane import OWNER
from application.services.text_side.answers.prompt_encoder import HUGE_CHARS, LONG_CHARS, PromptEncoder, check_fit
from application.services.text_side.answers.prompt_files import PromptFiles
from application.services.text_side.answers.prompt_images import PromptImages
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from domain.request.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from domain.request.sampling import StopRules
from tests.support.http.files import ToyFiles
from tests.support.patience import PATIENCE_S

_HI = ChatMessage(Role.USER, "hi")
LONG, SHORT = TextPrompt("x" * LONG_CHARS), TextPrompt("short")


class _Gated(FakeTokenizer):
    """Long texts wait at a gate; `running` counts how many are being encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.running = 0
        self.most_running = 0
        self._lock = threading.Lock()

    def encode(self, text: str, max_tokens: int | None = None, salt: str = "") -> EncodedPrompt:
        if len(text) < LONG_CHARS:
            return super().encode(text, max_tokens)
        with self._lock:
            self.running += 1
            self.most_running = max(self.running, self.most_running)
        assert self.gate.wait(PATIENCE_S)
        with self._lock:
            self.running -= 1
        return EncodedPrompt.of_text((1, 2, 3))


def _model(tokenizer: FakeTokenizer, context_length: int = 2**30) -> ServedModel:
    source = ModelSource(ModelId("m"), "")
    description = FakeModel(source, FakeOptions(context_length=context_length)).description
    return ServedModel(source, tokenizer, description, "")


def _request(prompt: Prompt) -> GenerationRequest:
    return GenerationRequest(RequestId("r"), ModelId("m"), prompt)


@asynccontextmanager
async def _encoder() -> AsyncIterator[PromptEncoder]:
    encoder = PromptEncoder(PromptImages(ImageFetcher(lambda: ())), PromptFiles(ToyFiles()))
    try:
        yield encoder
    finally:
        encoder.close()


def test_short_prompts_pass_any_number_of_long_ones() -> None:
    tokenizer = _Gated()

    async def run() -> None:
        async with _encoder() as encoder:
            long = [asyncio.create_task(encoder.encode(_request(LONG), _model(tokenizer))) for _ in range(20)]
            for _ in range(20):
                assert (await encoder.encode(_request(SHORT), _model(tokenizer))).prompt.token_ids == tuple(b"short")
            chat = ChatPrompt((ChatMessage(Role.USER, "hi"),))
            assert (await encoder.encode(_request(chat), _model(tokenizer))).prompt.token_ids
            tokenizer.gate.set()
            assert [encoded.prompt.token_ids for encoded in await asyncio.gather(*long)] == [(1, 2, 3)] * 20

    asyncio.run(run())
    assert tokenizer.most_running == 1


class _Recording(FakeTokenizer):
    """Keeps the first letters of what it encodes, in order; the letter g waits at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.begun = threading.Event(), threading.Semaphore(0)
        self.encoded = list[str]()

    def encode(self, text: str, max_tokens: int | None = None, salt: str = "") -> EncodedPrompt:
        self.begun.release()
        assert text[0] != "g" or self.gate.wait(PATIENCE_S)
        self.encoded.append(text[0])
        return EncodedPrompt.of_text((1, 2, 3))


@pytest.mark.parametrize("num_chars", [LONG_CHARS - 4, LONG_CHARS * 4])
def test_texts_of_one_client_wait_for_one_text_of_another_at_a_time(num_chars: int) -> None:
    tokenizer = _Recording()

    async def run() -> None:
        async with _encoder() as encoder:

            async def send(client: str, letter: str, num_chars: int) -> None:
                OWNER.set(client)
                await encoder.encode(_request(TextPrompt(letter * num_chars)), _model(tokenizer))

            num_threads = 2 if num_chars < LONG_CHARS else 1
            sent = [asyncio.create_task(send("flood", "g", num_chars)) for _ in range(num_threads)]
            await asyncio.sleep(0)
            for _ in range(num_threads):
                assert tokenizer.begun.acquire(timeout=PATIENCE_S)
            sent += [asyncio.create_task(send("flood", "f", num_chars)) for _ in range(8)]
            await asyncio.sleep(0)
            sent += [asyncio.create_task(send("other", "o", num_chars // 4)) for _ in range(4)]
            await asyncio.sleep(0)
            tokenizer.gate.set()
            await asyncio.gather(*sent)

    asyncio.run(run())
    shown = "".join(tokenizer.encoded)
    assert shown.count("f") == 8
    assert shown[: shown.rindex("o")].count("f") <= 2


@pytest.mark.parametrize(("num_chars", "lane"), [(LONG_CHARS, "cairn-long-text"), (HUGE_CHARS, "cairn-huge-text")])
@pytest.mark.parametrize("part", ["content", "call", "schema", "values", "argument"])
def test_all_that_is_rendered_makes_a_prompt_long(part: str, num_chars: int, lane: str) -> None:
    text, calling = "x" * num_chars, ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("x" * num_chars, "f", "{}"),))
    prompt = {
        "content": ChatPrompt((ChatMessage(Role.USER, text),)),
        "call": ChatPrompt((calling,)),
        "schema": ChatPrompt((_HI,), (ToolSpec("f", parameters={"enum": [text]}),)),
        "values": ChatPrompt((_HI,), (ToolSpec("f", parameters={"enum": [{"x": 1}] * (num_chars // 16)}),)),
        "argument": ChatPrompt((_HI,), template_kwargs={"x": [0] * (num_chars // 4)}),
    }[part]
    threads = list[str]()

    class Rendering(FakeTokenizer):
        def render(
            self, prompt: ChatPrompt, max_tokens: int | None = None, salt: str = "", images: ImageRows | None = None
        ) -> EncodedPrompt:
            threads.append(threading.current_thread().name)
            return EncodedPrompt.of_text((1,))

    async def run() -> None:
        async with _encoder() as encoder:
            await encoder.encode(_request(ChatPrompt((_HI,))), _model(Rendering()))
            await encoder.encode(_request(prompt), _model(Rendering()))

    asyncio.run(run())
    assert [name.rstrip("-01") for name in threads] == ["cairn-text", lane]


def test_what_cannot_fit_is_refused_before_it_waits() -> None:
    tokenizer = _Recording()

    async def run(text: str) -> None:
        async with _encoder() as encoder:
            await encoder.encode(_request(TextPrompt(text)), _model(tokenizer, 100))

    with pytest.raises(ContextOverflow, match="prompt has at least 100 tokens"):
        asyncio.run(run("x" * 100))
    assert tokenizer.encoded == []
    asyncio.run(run("x" * 99))
    assert tokenizer.encoded == ["x"]


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TextPrompt("x" * 100), "prompt"),
        (TokenPrompt(IdRow((300,) * 100)), "prompt"),
        (ChatPrompt((ChatMessage(Role.USER, "x" * 100),)), "messages"),
    ],
)
def test_what_leaves_no_room_for_an_answer_is_refused_with_its_field(prompt: Prompt, field: str) -> None:
    async def run() -> None:
        async with _encoder() as encoder:
            await encoder.encode(_request(prompt), _model(FakeTokenizer(), 100))

    with pytest.raises(ContextOverflow, match=f"{field} has .*100") as refused:
        asyncio.run(run())
    assert refused.value.param == field


def test_an_answer_is_cut_to_the_room_that_its_prompt_leaves() -> None:
    """Clients send fixed lengths, whatever they need."""
    prompt, tokenizer = EncodedPrompt.of_text(range(90)), FakeTokenizer()
    model = _model(tokenizer, 100).description
    for wanted, length in ((None, 10), (32_000, 10), (10, 10), (9, 9), (0, 0)):
        request = replace(_request(SHORT), stop=StopRules(wanted), num_prompt_logprobs=0)
        assert check_fit(request, prompt, tokenizer, model) == length
    with pytest.raises(ContextOverflow, match="min_tokens is 11") as refused:
        check_fit(replace(_request(SHORT), stop=StopRules(min_tokens=11)), prompt, tokenizer, model)
    assert refused.value.param == "min_tokens"


def test_a_prediction_is_encoded_where_it_is_drafted_from() -> None:
    async def run() -> None:
        async with _encoder() as encoder:
            request = replace(_request(SHORT), prediction="expected")
            model = _model(FakeTokenizer()).description
            found = await encoder.predicted(request, FakeTokenizer(), model)
            assert found == FakeTokenizer().encode("expected").token_ids
            assert not await encoder.predicted(replace(request, speculates=False), FakeTokenizer(), model)
            with pytest.raises(ContextOverflow, match=r"prediction has .*100"):
                await encoder.predicted(
                    replace(request, prediction="x" * 101), FakeTokenizer(), _model(FakeTokenizer(), 100).description
                )

    asyncio.run(run())
