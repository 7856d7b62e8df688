"""Texts for vectors and scores: checked one by one, and grouped so that what they have in common is computed once."""

import tracemalloc
from collections.abc import Sequence

import pytest

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.services.text_side.answers.text_groups import (
    MAX_CHARS,
    MIN_SHARED,
    MIN_SHARED_LONG,
    encode_texts,
    grouped,
)
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow, InvalidRequest
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.models.capability import Capability, PoolingMethod, PoolingProfile
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.pooling import MAX_ROW, MAX_TOKENS, PooledPrompt, Pooling

EMBED, SCORE = Pooling(Capability.EMBED), Pooling(Capability.SCORE)
CONTEXT = 2000


def served(profile: PoolingProfile = PoolingProfile()) -> ServedModel:  # noqa: B008
    source = ModelSource(ModelId("toy"), "toy")
    toy = FakeModel(source, FakeOptions(embedding_size=8, context_length=CONTEXT))
    return ServedModel(source, FakeTokenizer(), toy.description, "", LoadOptions(pooling=profile))


def ids(start: int, length: int, end: int = 7) -> IdRow:
    """A text that begins as all with this `start`, and ends differently."""
    return IdRow([start] * (length - 1) + [end])


def shapes(texts: Sequence[IdRow], num_shared: int | None = None) -> list[tuple[int, list[int]]]:
    """The groups' prompts and rows, as lengths. Whatever the groups are, each text is one of them once."""
    groups = list(grouped(texts, range(len(texts)), num_shared))
    joined = {
        place: IdRow.joined((group.prompt, row))
        for group in groups
        for row, places in zip(group.rows, group.places, strict=True)
        for place in places
    }
    assert [joined[place] for place in range(len(texts))] == list(texts)
    assert sum(len(places) for group in groups for places in group.places) == len(texts)
    assert all(1 <= len(row) <= MAX_ROW for group in groups for row in group.rows)
    return [(len(group.prompt), [len(row) for row in group.rows]) for group in groups]


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
            [ids(1, MIN_SHARED_LONG, 7).followed_by([3] * 400), ids(1, MIN_SHARED_LONG, 8).followed_by([3] * 400)],
            [(655, [1]), (655, [1])],
            id="not long ones that share less than a block, which are kept whole",
        ),
    ],
)
def test_texts_are_grouped_by_what_they_have_in_common(
    texts: list[IdRow], expected: list[tuple[int, list[int]]]
) -> None:
    assert shapes(texts) == expected


def test_a_known_beginning_is_the_prompt_even_where_more_is_shared() -> None:
    texts = [ids(1, 60, 7), ids(1, 60, 8), ids(1, 800, 9)]
    assert shapes(texts, 40) == [(40, [20, 20]), (799, [1])]
    assert shapes(texts, 0) == [(0, [60, 60]), (799, [1])]


def test_documents_of_one_query_are_computed_behind_it_and_single_pairs_behind_their_instruction() -> None:
    prompt = PooledPrompt(("a", "b", "c", "d"), SCORE, queries=("cats", "cats", "dogs", "birds"), field="text_2")
    single, cats = encode_texts(prompt, served(), "")
    tokenizer = FakeTokenizer()
    pairs = tokenizer.encode_pairs("cats", ["a", "b"])
    assert (cats.prompt, cats.places) == (pairs.prefix, ((0,), (1,)))
    assert cats.rows == tuple(IdRow.joined((document, pairs.suffix)) for document in pairs.documents)
    assert single.places == ((3,), (2,))
    assert "<Query>: " in tokenizer.decode(single.prompt)
    assert "dogs" not in tokenizer.decode(single.prompt)


def test_one_query_is_for_all_documents() -> None:
    (group,) = encode_texts(PooledPrompt(("a", "b"), SCORE, queries=("cats",)), served(), "")
    assert len(group.rows) == 2


def test_the_mean_of_a_whole_text_is_computed_in_one_pass() -> None:
    model = served(PoolingProfile(method=PoolingMethod.MEAN))
    text = "the same beginning of both of the texts: "
    (group,) = encode_texts(PooledPrompt((f"{text}a", f"{text}b"), EMBED), model, "")
    assert (len(group.prompt), len(group.rows)) == (0, 2)
    with pytest.raises(ContextOverflow, match=r"^input\[0\] has at least 600 tokens, and toy takes 512"):
        encode_texts(PooledPrompt(("x" * 600,), EMBED), model, "")


def test_named_prompts_stand_before_each_text_and_the_default_one_before_the_others() -> None:
    model = served(PoolingProfile(prompts=(("query", "Query: "), ("default", "Text: "))))
    decode = FakeTokenizer().decode

    def rows(prompt: PooledPrompt) -> list[str]:
        return [decode(row) for row in encode_texts(prompt, model, "")[0].rows]

    assert rows(PooledPrompt(("a", "b"), EMBED, prompt_name="query")) == ["Query: a", "Query: b"]
    assert rows(PooledPrompt(("a",), EMBED)) == ["Text: a"]
    assert rows(PooledPrompt((IdRow([65, 66]),), EMBED, prompt_name="query")) == ["AB"]
    with pytest.raises(InvalidRequest, match="prompt_name 'passage' is not a prompt of toy, which has: query, default"):
        rows(PooledPrompt(("a",), EMBED, prompt_name="passage"))


def test_a_text_that_is_too_long_is_refused_by_its_index_or_cut_where_that_is_asked_for() -> None:
    texts = ("short", "x" * (CONTEXT + 1), IdRow([65] * (CONTEXT + 2)))
    with pytest.raises(ContextOverflow, match=rf"^input\[1\] has at least {CONTEXT + 1} tokens") as refusal:
        encode_texts(PooledPrompt(texts, EMBED), served(), "")
    assert (refusal.value.param, refusal.value.context_length) == ("input[1]", CONTEXT)
    cut = encode_texts(PooledPrompt(texts, EMBED, truncates=True), served(), "")
    assert sum(group.num_tokens for group in cut) == len("short") + 2 * CONTEXT


def test_a_document_that_is_cut_keeps_its_query_and_the_end_of_the_template() -> None:
    prompt = PooledPrompt(("x" * CONTEXT,), SCORE, queries=("cats",), truncates=True)
    (group,) = encode_texts(prompt, served(), "")
    pairs = FakeTokenizer().encode_pairs("cats", [""])
    whole = IdRow.joined((group.prompt, *group.rows))
    assert len(whole) == group.num_tokens == CONTEXT
    assert (whole[: len(pairs.prefix)], whole[-len(pairs.suffix) :]) == (pairs.prefix, pairs.suffix)
    query = PooledPrompt(("a",), SCORE, queries=("x" * CONTEXT,), truncates=True, field="documents")
    with pytest.raises(ContextOverflow, match=r"^documents\[0\] has"):
        encode_texts(query, served(), "")


@pytest.mark.parametrize(
    ("texts", "pooling", "message"),
    [
        (("a", ""), EMBED, r"^input\[1\] must not be empty"),
        ((), EMBED, "^input must not be empty"),
        (("a",) * 2049, EMBED, "^input has 2049 entries, at most 2048"),
        ((IdRow([1]), IdRow([260])), EMBED, r"^input\[1\] has a token id outside the vocabulary \(0 to 259\)"),
        (("x" * CONTEXT,) * (MAX_TOKENS // CONTEXT + 1), EMBED, f"^input has {(MAX_TOKENS // CONTEXT + 1) * CONTEXT} "),
        (("a",), Pooling(Capability.EMBED, 9), "^dimensions is 9, and toy makes 4 to 8"),
        (("a",), Pooling(Capability.EMBED, 3), "^dimensions is 3, and toy makes 4 to 8"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_its_field(
    texts: tuple[str | IdRow, ...], pooling: Pooling, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        encode_texts(PooledPrompt(texts, pooling), served(PoolingProfile(dimensions=(4, 1024))), "")


def test_dimensions_are_refused_for_a_model_that_was_not_trained_for_shorter_vectors() -> None:
    encode_texts(PooledPrompt(("a",), Pooling(Capability.EMBED, 8)), served(), "")
    with pytest.raises(InvalidRequest, match=r"^dimensions is 4, and toy makes 8$"):
        encode_texts(PooledPrompt(("a",), Pooling(Capability.EMBED, 4)), served(), "")


def test_a_long_query_of_many_documents_is_refused_before_it_is_in_all_of_them() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"^input has \d+ tokens in all"):
            encode_texts(PooledPrompt(("x",) * 2048, SCORE, ("y" * 1500,)), served(), "")
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2_000_000  # joined, the texts would take 12 MB


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (PooledPrompt(("a", "x" * (MAX_CHARS + 1)), EMBED), r"^input\[1\] has 1048577 characters"),
        (PooledPrompt(("a", "x" * (MAX_CHARS + 1)), SCORE, ("q",)), r"^input\[1\] has 1048577 characters"),
        (PooledPrompt(("a",), SCORE, ("q" * (MAX_CHARS + 1),), truncates=True), "^the query or instruction has"),
        (PooledPrompt(("a",), SCORE, ("q",), instruction="i" * (MAX_CHARS + 1)), "^the query or instruction has"),
    ],
)
def test_a_text_that_takes_much_memory_to_encode_is_refused(prompt: PooledPrompt, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        encode_texts(prompt, served(), "")


def test_a_text_that_takes_much_memory_to_encode_is_cut_before_where_that_is_asked_for() -> None:
    (group,) = encode_texts(PooledPrompt(("x" * (MAX_CHARS + 1),), EMBED, truncates=True), served(), "")
    assert group.num_tokens == CONTEXT
