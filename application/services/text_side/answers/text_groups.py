"""The texts of a request for vectors or scores as token ids: encoded, checked, and grouped by their beginnings.

    texts ──► ids, each checked or cut ──► groups: a prompt, and the rest of each text as a row

The short texts are one group, behind whatever they have in common; the documents of one query are one group behind it.
A longer text is a prompt of its own, so that it is computed in chunks, restored and kept as any prompt is; long ones
that differ in a short end only share theirs. Equal texts are computed once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from application.ports.tokenizer import PromptTooLong
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow, InvalidRequest
from domain.id_row import IdRow
from domain.models.capability import PoolingMethod, PoolingProfile
from domain.prefix.explanation import common_length
from domain.printable import printable
from domain.request.pooling import MAX_ROW, MAX_TOKENS, PooledPrompt

MIN_SHARED = 32
"""The fewest common tokens that become a prompt: the state of fewer costs more than computing them in each row."""

MIN_SHARED_LONG = MAX_ROW // 2
"""The same for texts above MAX_ROW, which are kept only as prompts of their own."""

MAX_CHARS = 2**20
"""The most characters of one text that are encoded: encoding takes some 200 bytes of memory a character."""

_NO_IDS = IdRow()

_Pieces: TypeAlias = tuple[IdRow, IdRow, IdRow]
"""A text, and the tokens before and after it that are never cut."""

_Part: TypeAlias = tuple[Sequence[int], int | None]
"""Indexes of texts, and `num_shared` as `grouped` takes it."""


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Texts that are computed behind one state. `prompt`: their common beginning, may be empty. `rows`: the different
    rests, the longest first. `places`: the indexes of the texts that end with each row."""

    prompt: IdRow
    rows: tuple[IdRow, ...]
    places: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        """The tokens of all its texts, each with its beginning."""
        ends = zip(self.rows, self.places, strict=True)
        return sum((len(self.prompt) + len(row)) * len(places) for row, places in ends)


def encode_texts(prompt: PooledPrompt, model: ServedModel, salt: str) -> tuple[TextGroup, ...]:
    """Returns the groups of a request's texts. Any thread; as slow as encoding is. Raises InvalidRequest and
    ContextOverflow, naming a text by its index."""
    profile = model.options.pooling or PoolingProfile()
    is_mean = profile.method is PoolingMethod.MEAN  # of all hidden states, so that nothing can be computed before
    limit = min(model.description.context_length, MAX_ROW) if is_mean else model.description.context_length
    _check_dimensions(prompt, profile, model)
    if prompt.queries:
        found, parts = _pairs(prompt, model, salt)
    else:
        found = _single(prompt, model, profile, limit, salt)
        parts = [(range(len(found)), 0 if is_mean else None)]
    # before they are joined: a long query is in every text of a request
    num_tokens = sum(min(sum(map(len, pieces)), limit) for pieces in found)
    if num_tokens > MAX_TOKENS:
        raise InvalidRequest(
            f"{prompt.field} has {num_tokens} tokens in all, at most {MAX_TOKENS} are allowed: send it in several"
            " requests",
            param=prompt.field,
        )
    texts = [_joined(prompt, index, pieces, model, limit) for index, pieces in enumerate(found)]
    return tuple(group for indexes, num_shared in parts for group in grouped(texts, indexes, num_shared))


def grouped(texts: Sequence[IdRow], indexes: Sequence[int], num_shared: int | None = None) -> Iterator[TextGroup]:
    """Yields the groups of some texts, by their indexes. `num_shared`: the tokens that begin all of them; None for
    those that the short ones turn out to have in common."""
    places: dict[IdRow, list[int]] = {}
    for index in indexes:
        places.setdefault(texts[index], []).append(index)
    known = num_shared if num_shared is not None and num_shared >= MIN_SHARED else 0
    short = [text for text in places if len(text) - known <= MAX_ROW]
    long = sorted((text for text in places if len(text) - known > MAX_ROW), key=IdRow.to_bytes)
    if short:
        start = known
        if num_shared is None and len(short) > 1:
            first, last = min(short, key=IdRow.to_bytes), max(short, key=IdRow.to_bytes)
            start = min(common_length(first, last), min(map(len, short)) - 1)
        yield _group(short, start if start >= MIN_SHARED else 0, places)
    run: list[IdRow] = []
    start = 0
    for text in long:
        common = min(start, common_length(run[0], text)) if run else 0
        if run and (common < MIN_SHARED_LONG or max(map(len, (*run, text))) - common > MAX_ROW):
            yield _group(run, start, places)
            run = []
        start = common if run else len(text) - 1
        run.append(text)
    if run:
        yield _group(run, start, places)


def _group(texts: Sequence[IdRow], start: int, places: Mapping[IdRow, Sequence[int]]) -> TextGroup:
    texts = sorted(texts, key=len, reverse=True)
    rows, found = tuple(text[start:] for text in texts), tuple(tuple(places[text]) for text in texts)
    return TextGroup(texts[0][:start], rows, found)


def _single(prompt: PooledPrompt, model: ServedModel, profile: PoolingProfile, limit: int, salt: str) -> list[_Pieces]:
    """Encodes texts that stand for themselves."""
    name, prompts = prompt.prompt_name, dict(profile.prompts)
    if name is not None and name not in prompts:
        known = ", ".join(prompts) or "none"
        raise InvalidRequest(
            f"prompt_name {printable(name)!r} is not a prompt of {model.source.id}, which has: {known}",
            param="prompt_name",
        )
    before = prompts.get(name or "default", "")
    around = model.tokenizer.encode("").token_ids
    found: list[_Pieces] = []
    for index, text in enumerate(prompt.texts):
        if isinstance(text, IdRow):
            if max(text) >= (size := model.description.vocab_size):
                place = prompt.place(index)
                raise InvalidRequest(f"{place} has a token id outside the vocabulary (0 to {size - 1})", param=place)
            found.append((_NO_IDS, text, _NO_IDS))
            continue
        try:
            whole = before + _encodable(prompt, text, prompt.place(index))
            ids = model.tokenizer.encode(whole, None if prompt.truncates else limit, salt).token_ids
        except PromptTooLong as error:
            raise _too_long(prompt, index, error.num_tokens, model, limit, is_exact=error.is_exact) from None
        num_after = next((num for num in range(len(around), 0, -1) if ids[-num:] == around[-num:]), 0)
        found.append((_NO_IDS, ids[: len(ids) - num_after], ids[len(ids) - num_after :]))
    return found


def _pairs(prompt: PooledPrompt, model: ServedModel, salt: str) -> tuple[list[_Pieces], list[_Part]]:
    """Encodes documents behind their queries. Those of one query share its beginning; the others are grouped by what
    they have in common."""
    by_query: dict[str, list[int]] = {}
    for index in range(len(prompt.texts)):
        by_query.setdefault(prompt.queries[index % len(prompt.queries)], []).append(index)
    found: list[_Pieces] = [(_NO_IDS, _NO_IDS, _NO_IDS)] * len(prompt.texts)
    alone: list[int] = []
    parts: list[_Part] = [(alone, None)]
    for query, indexes in by_query.items():
        for asked in (query, prompt.instruction or ""):
            _encodable(prompt, asked, "the query or instruction", is_cut=False)
        documents = [_encodable(prompt, str(prompt.texts[index]), prompt.place(index)) for index in indexes]
        pairs = model.tokenizer.encode_pairs(query, documents, prompt.instruction, salt)
        for index, document in zip(indexes, pairs.documents, strict=True):
            found[index] = pairs.prefix, document, pairs.suffix
        if len(indexes) == 1:
            alone += indexes
        else:
            parts.append((indexes, len(pairs.prefix)))
    return found, parts


def _encodable(prompt: PooledPrompt, text: str, place: str, *, is_cut: bool = True) -> str:
    """Returns the text, or its beginning where that is asked for. Raises InvalidRequest for more than MAX_CHARS."""
    if len(text) > MAX_CHARS and not (is_cut and prompt.truncates):
        message = f"{place} has {len(text)} characters, at most {MAX_CHARS} are allowed: shorten it"
        raise InvalidRequest(message, param=place if is_cut else None)
    return text[:MAX_CHARS]


def _joined(prompt: PooledPrompt, index: int, pieces: _Pieces, model: ServedModel, limit: int) -> IdRow:
    """Returns the whole text; of one that is too long, the beginning of the middle piece. Raises ContextOverflow."""
    before, text, after = pieces
    room = limit - len(before) - len(after)
    if len(text) > room and (room < 1 or not prompt.truncates):
        raise _too_long(prompt, index, sum(map(len, pieces)), model, limit)
    return IdRow.joined((before, text[:room], after))


def _too_long(
    prompt: PooledPrompt, index: int, num_tokens: int, model: ServedModel, limit: int, *, is_exact: bool = True
) -> ContextOverflow:
    place, count = prompt.place(index), str(num_tokens) if is_exact else f"at least {num_tokens}"
    return ContextOverflow(
        f"{place} has {count} tokens, and {model.source.id} takes {limit}: shorten it, send it in parts, or ask for"
        " truncation",
        param=place,
        num_prompt=num_tokens,
        context_length=limit,
    )


def _check_dimensions(prompt: PooledPrompt, profile: PoolingProfile, model: ServedModel) -> None:
    """Raises InvalidRequest for vectors of a length that the model was not trained for."""
    wanted, size = prompt.pooling.dimensions, model.description.embedding_size
    least, most = profile.dimensions or (size, size)
    if wanted is not None and wanted != size and not least <= wanted <= min(most, size):
        lengths = f"{least} to {min(most, size)}" if least < size else str(size)
        raise InvalidRequest(f"dimensions is {wanted}, and {model.source.id} makes {lengths}", param="dimensions")
