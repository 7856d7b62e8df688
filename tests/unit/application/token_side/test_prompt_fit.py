"""Which ids of a prompt are looked at before it is submitted, and what is said of those that no token has."""

import asyncio
from collections.abc import Iterator

import pytest

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from adapters.web.image_fetcher import ImageFetcher
from application.services.text_side.answers.prompt_encoder import PromptEncoder, check_fit
from application.services.text_side.answers.prompt_files import PromptFiles
from application.services.text_side.answers.prompt_images import PromptImages
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import InvalidRequest
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.models.model_card import ModelSource
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.request import GenerationRequest, Prompt, TextPrompt, TokenPrompt
from tests.support.http.files import ToyFiles

MODEL = FakeModel(ModelSource(ModelId("m"), ""), FakeOptions(vocab_size=300)).description


class _Knowing(FakeTokenizer):
    """Knows tokens up to `vocab_size`."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self._knows = vocab_size

    @property
    def vocab_size(self) -> int:
        return self._knows


class _Unread(IdRow):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError("every id of a long prompt is looked at")


def fit(prompt: Prompt, ids: IdRow, knows: int = 300) -> int:
    request = GenerationRequest(RequestId("r"), ModelId("m"), prompt)
    return check_fit(request, EncodedPrompt(ids), _Knowing(knows), MODEL)


@pytest.mark.parametrize("ids", [(300,), (2, 3, 299, 300), (3, (1 << 32) - 1)])
def test_numbers_that_no_token_has_are_refused_by_name(ids: tuple[int, ...]) -> None:
    prompt = TokenPrompt(IdRow(ids))

    async def checked() -> None:
        encoder = PromptEncoder(PromptImages(ImageFetcher(lambda: ())), PromptFiles(ToyFiles()))
        try:
            request = GenerationRequest(RequestId("r"), ModelId("m"), prompt)
            served = ServedModel(ModelSource(ModelId("m"), ""), FakeTokenizer(), MODEL, "")
            encoded = await encoder.encode(request, served)
            check_fit(request, encoded.prompt, FakeTokenizer(), MODEL)
        finally:
            encoder.close()

    with pytest.raises(InvalidRequest, match=r"contains a token id outside the vocabulary \(0 to 299\)") as refused:
        asyncio.run(checked())
    assert refused.value.param == "prompt"


def test_what_a_tokenizer_made_is_looked_at_where_it_knows_more_than_its_model() -> None:
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        fit(TextPrompt("x"), IdRow((1, 300)), knows=301)
    assert fit(TextPrompt("x"), IdRow((1, 299)), knows=301)


def test_otherwise_nobody_looks_at_every_id() -> None:
    assert fit(TextPrompt("x"), _Unread((1, 2)))
    with pytest.raises(AssertionError):
        fit(TokenPrompt(IdRow((1, 2))), _Unread((1, 2)))
