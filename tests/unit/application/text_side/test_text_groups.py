"""Texts for vectors and scores: checked one by one, and grouped so that what they have in common is computed once."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.services.text_side.answers.text_groups import MIN_SHARED, TextGroup, encode_texts, grouped
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow, InvalidRequest
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.models.capability import MAX_ROW, Capability, ModelUse, Pooling
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.rerank import query_text
from domain.request.pooling import MAX_CHARS, MAX_TOKENS, PooledPrompt

EMBEDS, SCORES = ModelUse(frozenset({Capability.EMBED}), size=8, least=4), ModelUse(frozenset({Capability.SCORE}))
CONTEXT = 2000


def encoded(prompt: PooledPrompt, use: ModelUse = EMBEDS) -> tuple[TextGroup, ...]:
    source = ModelSource(ModelId("toy"), "toy", use=use)
    toy = FakeModel(source, FakeOptions(context_length=CONTEXT))
    _, groups, num_tokens = encode_texts(prompt, ServedModel(source, FakeTokenizer(), toy.description, "", OPTIONS), "")
    whole = [len(group.prompt) + len(row) for group in groups for row, places in ends(group) for _ in places]
    assert sum(whole) == num_tokens
    return groups


OPTIONS = LoadOptions()


def ends(group: TextGroup) -> list[tuple[IdRow, tuple[int, ...]]]:
    return list(zip(group.rows, group.places, strict=True))


def ids(start: int, length: int, end: int = 7) -> IdRow:
    """A text that begins as all with this `start`, and ends differently."""
    return IdRow([start] * (length - 1) + [end])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param([ids(1, 9)], [(0, [9])], id="a short text is one row"),
        pytest.param([ids(1, 9), ids(2, 5), ids(3, 7)], [(0, [9, 7, 5])], id="short texts are one group"),
        pytest.param([ids(1, 9), ids(2, 5), ids(1, 9)], [(0, [9, 5])], id="equal texts are computed once"),
        pytest.param(
            [ids(1, 60, 7), ids(1, 60, 8), ids(1, 50, 9)], [(49, [11, 11, 1])], id="behind what they have in common"
        ),
        pytest.param([ids(1, MIN_SHARED, 7), ids(1, MIN_SHARED, 8)], [(0, [32, 32])], id="unless that is little"),
        pytest.param([ids(1, 50, 7), ids(1, 49, 1)], [(48, [2, 1])], id="one text begins another"),
        pytest.param([ids(1, 700)], [(699, [1])], id="a long text is a prompt"),
        pytest.param(
            [ids(1, 700), ids(2, 5), ids(3, 900)], [(0, [5]), (699, [1]), (899, [1])], id="each long one its own"
        ),
        pytest.param(
            [ids(1, 700, 7), ids(1, 750, 8)], [(699, [51, 1])], id="long texts that differ in a short end share theirs"
        ),
        pytest.param(
            [ids(1, 99).followed_by([end] * 500) for end in (8, 9)], [(99, [500, 500])], id="as far as rows go"
        ),
        pytest.param([ids(1, 99).followed_by([end] * 513) for end in (8, 9)], [(611, [1])] * 2, id="and no further"),
    ],
)
@pytest.mark.parametrize("begin", [IdRow(), IdRow(range(40))])
def test_texts_are_grouped_by_what_they_have_in_common(
    texts: list[IdRow], expected: list[tuple[int, list[int]]], begin: IdRow
) -> None:
    groups = list(grouped(texts, begin, MIN_SHARED))
    assert [(len(group.prompt) - len(begin), list(map(len, group.rows))) for group in groups] == expected
    joined = {place: IdRow.joined((group.prompt, row)) for group in groups for row, at in ends(group) for place in at}
    assert [joined[place] for place in range(len(texts))] == [IdRow.joined((begin, text)) for text in texts]
    assert all(1 <= len(row) <= MAX_ROW for group in groups for row in group.rows)


def rows(prompt: PooledPrompt, use: ModelUse = EMBEDS) -> list[str]:
    return [FakeTokenizer().decode(row) for group in encoded(prompt, use) for row in group.rows]


def test_documents_follow_their_query() -> None:
    (group,) = encoded(PooledPrompt(("one", "two, longer"), "cats", "Find pets"), SCORES)
    assert FakeTokenizer().decode(group.prompt) == query_text("cats", "Find pets")
    assert [FakeTokenizer().decode(row) for row in group.rows] == [" two, longer", " one"]
    assert group.places == ((1,), (0,))


def test_the_mean_of_a_whole_text_is_computed_in_one_pass() -> None:
    use = ModelUse(frozenset({Capability.EMBED}), Pooling(is_mean=True), 8, 8, max_tokens=MAX_ROW)
    text = "the same beginning of both of the texts: "
    (group,) = encoded(PooledPrompt((f"{text}a", f"{text}b")), use)
    assert (len(group.prompt), len(group.rows)) == (0, 2)
    with pytest.raises(ContextOverflow, match=r"^input\[0\] has at least 600 tokens, and toy takes 512"):
        encoded(PooledPrompt(("x" * 600,)), use)


def test_texts_of_an_encoder_are_rows_whatever_their_length_and_share_nothing() -> None:
    use = ModelUse(frozenset({Capability.EMBED}), Pooling(is_mean=True), 8, 8, max_tokens=1500, is_encoder=True)
    text = "the same beginning of all of the texts: "
    (group,) = encoded(PooledPrompt((f"{text}a", text * 30, f"{text}a", "b")), use)
    assert (len(group.prompt), list(map(len, group.rows))) == (0, [1200, 41, 1])
    assert group.places == ((1,), (0, 2), (3,))


def test_a_query_is_in_the_row_of_each_document_of_an_encoder() -> None:
    use = ModelUse(frozenset({Capability.SCORE}), max_tokens=20, is_encoder=True)
    prompt = PooledPrompt(("one", "two, longer"), "cats", truncates=True)
    assert rows(prompt, use) == ["catstwo, longer", "catsone"]
    assert rows(replace(prompt, texts=("x" * 50,)), use) == ["cats" + "x" * 16]
    with pytest.raises(InvalidRequest, match=r"^instruction is not taken by toy"):
        encoded(replace(prompt, instruction="Find pets"), use)


def test_the_prompt_of_a_model_stands_before_each_text_but_not_before_token_ids() -> None:
    use = ModelUse(frozenset({Capability.EMBED}), size=8, least=8, prompt="Text: ")
    assert rows(PooledPrompt(("a", IdRow([65, 66]))), use) == ["Text: a", "AB"]


def test_a_text_that_is_too_long_is_refused_by_its_index_or_cut_where_that_is_asked_for() -> None:
    texts = ("short", "x" * (CONTEXT + 1), IdRow([65] * (CONTEXT + 2)))
    with pytest.raises(ContextOverflow, match=rf"^input\[1\] has at least {CONTEXT + 1} tokens") as refusal:
        encoded(PooledPrompt(texts))
    assert (refusal.value.param, refusal.value.context_length) == ("input[1]", CONTEXT)
    cut = encoded(PooledPrompt(texts, truncates=True))
    assert [len(group.prompt) + len(group.rows[0]) for group in cut] == [5, CONTEXT, CONTEXT]
    with pytest.raises(ContextOverflow, match=r"^documents\[0\] has"):
        encoded(PooledPrompt(("a",), "x" * CONTEXT, field="documents"), SCORES)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (lambda: PooledPrompt(("a", "")), r"^input\[1\] must not be empty"),
        (lambda: PooledPrompt(("a", IdRow())), r"^input\[1\] must not be empty"),
        (lambda: PooledPrompt(()), "^input must have 1 to 2048 texts"),
        (lambda: PooledPrompt(("a",) * 2049), "^input must have 1 to 2048 texts"),
        (lambda: PooledPrompt((IdRow([1]), IdRow([260]))), r"^input\[1\] has a token id outside the vocabulary"),
        (
            lambda: PooledPrompt(("x" * CONTEXT,) * (MAX_TOKENS // CONTEXT + 1)),
            f"^input must have at most {MAX_TOKENS}",
        ),
        (lambda: PooledPrompt(("a",), dimensions=9), "^dimensions must be 4 to 8 for toy"),
        (lambda: PooledPrompt(("a",), dimensions=3), "^dimensions must be 4 to 8 for toy"),
        (lambda: PooledPrompt(("a", "x" * (MAX_CHARS + 1))), r"^input\[1\] must have at most 1048576 characters"),
        (lambda: PooledPrompt(("a",), "q" * (MAX_CHARS + 1)), "^query must have"),
        (lambda: PooledPrompt(("a",), "q", "i" * (MAX_CHARS + 1)), "^instruction must have"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_its_field(prompt: Callable[[], PooledPrompt], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        encoded(prompt())


def test_a_long_query_is_not_copied_for_each_of_many_documents() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"^input must have at most"):
            encoded(PooledPrompt(("x",) * 2048, "y" * 1500), SCORES)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2_000_000  # joined, the texts would take 12 MB
