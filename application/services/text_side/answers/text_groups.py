"""The texts of a request for vectors or scores as token ids: encoded, checked, and grouped by their beginnings.

    texts ──► ids, each checked or cut ──► groups: a prompt, and the rest of each text as a row

The short texts are one group, behind whatever they have in common, and documents to score behind their query. A longer
text is a prompt of its own, so that it is computed in chunks, restored and kept as any prompt is; long ones that differ
in a short end share theirs. Equal texts are computed once. For an encoder, in which every token sees all others, a row
is a whole text of any length, with its query, and nothing is shared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from application.ports.tokenizer import PromptTooLong, check_length
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow, require
from domain.id_row import IdRow
from domain.models.capability import MAX_ROW, Pooling
from domain.models.rerank import NO, YES, query_text
from domain.prefix.explanation import common_length
from domain.request.pooling import MAX_TOKENS, PooledPrompt

MIN_SHARED = 32
"""The fewest common tokens that become a prompt: the state of fewer costs more than computing them in each row."""


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Texts that are computed behind one state. `prompt`: their common beginning, may be empty. `rows`: the different
    rests, the longest first. `places`: the indexes of the texts that end with each row."""

    prompt: IdRow
    rows: tuple[IdRow, ...]
    places: tuple[tuple[int, ...], ...]


def encode_texts(prompt: PooledPrompt, model: ServedModel, salt: str) -> tuple[Pooling, tuple[TextGroup, ...], int]:
    """Returns how the values are made, the groups of a request's texts, and the tokens of all. Any thread; as slow as
    encoding is. Raises InvalidRequest and ContextOverflow, naming a text by its index."""
    use, encode, begin = model.source.use, partial(model.tokenizer.encode_part, salt=salt), IdRow()
    pooling, ends = use.pooling, model.tokenizer.ends
    fits = prompt.dimensions is None or max(use.least, 1) <= prompt.dimensions <= use.size
    require(fits, "dimensions", f"must be {use.least} to {use.size} for {model.source.id}")
    is_encoder = use.is_encoder
    if prompt.query is not None and is_encoder:
        require(prompt.instruction is None, "instruction", f"is not taken by {model.source.id}: leave it out")
        ends = (IdRow.joined((ends[0], encode(prompt.query), model.tokenizer.between)), ends[1])
    elif prompt.query is not None:
        pooling = replace(pooling, score_ids=(encode(YES)[0], encode(NO)[0]))
        begin, ends = IdRow.joined((ends[0], encode(query_text(prompt.query, prompt.instruction)))), (IdRow(), ends[1])
    limit, num_tokens, rows = model.description.context_length, 0, list[IdRow]()
    limit = min(limit, use.max_tokens or limit)
    for index, text in enumerate(prompt.texts):
        place, (start, end) = prompt.place(index), ends
        if isinstance(text, IdRow):  # stands as it is
            start, end = IdRow(), IdRow()
            size = model.description.vocab_size
            require(max(text, default=0) < size, place, f"has a token id outside the vocabulary (0 to {size - 1})")
        else:
            text = use.prompt + text if prompt.query is None or is_encoder else f" {text}"
        room = limit - len(begin) - len(start) - len(end)
        cuts = prompt.truncates and room > 0
        try:
            if not cuts and isinstance(text, str):
                check_length(len(text), model.tokenizer.max_token_chars, room)
            ids = encode(text) if isinstance(text, str) else text
            if len(ids) > room and not cuts:
                raise PromptTooLong(len(ids))
        except PromptTooLong as error:
            whole = limit - room + error.num_tokens
            count = str(whole) if error.is_exact else f"at least {whole}"
            message = f"{place} has {count} tokens, and {model.source.id} takes {limit}: shorten or divide it"
            raise ContextOverflow(message, param=place, num_prompt=whole, context_length=limit) from None
        require(len(ids) > 0, place, "must not be empty")
        rows.append(IdRow.joined((start, ids[:room], end)))
        num_tokens += len(begin) + len(rows[-1])
        require(num_tokens <= MAX_TOKENS, prompt.field, f"must have at most {MAX_TOKENS} tokens in all")
    longest = limit if is_encoder else MAX_ROW
    groups = tuple(grouped(rows, begin, longest if is_encoder or pooling.is_mean else MIN_SHARED, longest))
    return replace(pooling, dimensions=prompt.dimensions), groups, num_tokens


def grouped(texts: Sequence[IdRow], begin: IdRow, min_shared: int, max_row: int = MAX_ROW) -> Iterator[TextGroup]:
    """Yields the groups of texts that follow `begin`. `min_shared`: the fewest tokens to share beyond it. `max_row`:
    the most tokens of a row."""
    places: dict[IdRow, list[int]] = {}
    for index, text in enumerate(texts):
        places.setdefault(text, []).append(index)
    run, start, longest = list[IdRow](), 0, 0
    for text in sorted(places, key=lambda text: (len(text) > max_row, text.to_bytes())):
        shared = min(common_length(run[0], text), len(run[0]) - 1) if run else 0
        shared = shared if shared >= min_shared else 0
        if run and max(longest, len(text)) - shared > max_row:
            yield _group(run, begin, start, places)
            run = []
        start = shared if run else len(text) - 1 if len(text) > max_row else 0
        longest = max(longest, len(text)) if run else len(text)
        run.append(text)
    yield _group(run, begin, start, places)


def _group(texts: Sequence[IdRow], begin: IdRow, start: int, places: Mapping[IdRow, Sequence[int]]) -> TextGroup:
    rows = sorted(texts, key=len, reverse=True)
    ends, found = tuple(row[start:] for row in rows), tuple(tuple(places[row]) for row in rows)
    return TextGroup(IdRow.joined((begin, rows[0][:start])), ends, found)
