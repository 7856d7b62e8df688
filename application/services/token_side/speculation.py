"""Speculation: drafts for the sequences of a decode step, proposed before it and learnt from after it.

    drafts     looked up in prompt, output and predicted text, or made by the model's own drafter in the step itself
    depth      `domain.speculation.gain` decides, by the costs measured at load and by what was accepted lately
    no draft   a row of the model has none, too many rows decode, memory is short, the request or the model has it off

All rows of a model draft or none does, because rows that share a forward pass share its width. Tokens do not depend on
any of this. Compute thread only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import prod
from typing import Protocol, TypeVar

from application.ports.compute import NO_DRAFTS, DecodeResult, Draft, LoadedModel
from application.ports.engine import Submission
from application.services.token_side.event_batcher import EventBatcher
from domain.errors import ComputeFailed
from domain.id_row import IdRow
from domain.ids import ModelId, SequenceId
from domain.models.model_card import ModelDescription
from domain.prefix.prompt_content import EncodedPrompt
from domain.scheduling.sequence import Sequence as TokenSequence
from domain.speculation.drafter import Drafter
from domain.speculation.gain import MOST_DEPTH, MOST_ROWS, DepthControl
from domain.speculation.lookup import LARGEST_ID, NgramLookup, Proposal

NO_RESULT = ComputeFailed("the model returned no result for this sequence")


class SequenceDrafts:
    """The drafts of one sequence."""

    def __init__(self, sequence: TokenSequence, submission: Submission, model: ModelDescription) -> None:
        self._sequence, self._num_seen = sequence, len(sequence.output_ids)
        self._lookup: NgramLookup | None = None
        if model.speculation.allows(Drafter.NGRAM) and model.vocab_size <= LARGEST_ID:
            self._lookup = NgramLookup(_searched(submission.prompt), sequence.output_ids, submission.predicted_ids)

    @property
    def num_wanted(self) -> int:
        """The most draft tokens that the answer has room for, beside the token of a plain step. 0 before a step
        computes one pass: the first waits for the prompt, and the second feeds two tokens."""
        num_output = len(self._sequence.output_ids)
        return min(MOST_DEPTH, self._sequence.max_new_tokens - num_output - 1) if num_output > 1 else 0

    def look_up(self, depth: int) -> Proposal | None:
        """Returns the draft that follows the output so far, at most 1 + `depth` tokens: the first is one that a plain
        step gives as well."""
        if self._lookup is None:
            return None
        output_ids = self._sequence.output_ids
        self._lookup.extend(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        return self._lookup.propose(1 + depth)


class DecodingRun(Protocol):
    """A sequence that decodes. `drafts`: None if it does not speculate."""

    drafts: SequenceDrafts | None

    @property
    def id(self) -> SequenceId: ...

    @property
    def submission(self) -> Submission: ...


R = TypeVar("R", bound=DecodingRun)


class Speculation:
    """The decode steps of all models, with drafts."""

    def __init__(self, batcher: EventBatcher) -> None:
        self._batcher, self._control = batcher, cache(DepthControl)

    def decode(
        self, models: Mapping[ModelId, LoadedModel], runs: Iterable[R], *, may_draft: bool
    ) -> Iterator[tuple[R, DecodeResult | Exception]]:
        """Runs a decode step of each model. Yields each sequence with its result or its error; a model that raises
        fails its whole batch."""
        by_model: dict[ModelId, dict[SequenceId, R]] = {}
        for run in runs:
            by_model.setdefault(run.submission.model, {})[run.id] = run
        for model_id, rows in by_model.items():
            try:
                drafting = {id: run.drafts if may_draft else None for id, run in rows.items()}
                results = {result.id: result for result in self.decode_model(models[model_id], drafting)}
            except Exception as error:
                yield from ((run, error) for run in rows.values())
                continue
            for id, run in rows.items():
                result = results.get(id)
                yield run, NO_RESULT if result is None else result.error or result

    def decode_model(
        self, model: LoadedModel, rows: Mapping[SequenceId, SequenceDrafts | None]
    ) -> Sequence[DecodeResult]:
        """Runs a decode step of these rows (None: one that may not draft), with drafts where they pay. A fault of the
        drafts costs only the drafts."""
        drafting = [drafts for drafts in rows.values() if drafts is not None]
        most = min((drafts.num_wanted for drafts in drafting), default=0)
        costs = model.description.width_costs
        if costs is None or most <= 0 or not len(drafting) == len(rows) <= MOST_ROWS:
            return model.decode(list(rows))
        control = self._control(costs)
        proposed = NO_DRAFTS
        with self._batcher.attempt("speculation.draft"):
            proposed = _drafts(control, model.description, dict(zip(rows, drafting, strict=True)), most)
        begun_ns = self._batcher.now_ns()
        results = model.decode(list(rows), proposed)
        ms = (self._batcher.now_ns() - begun_ns) / 1e6
        with self._batcher.attempt("speculation.learn"):
            _learn(control, model.description, results, ms)
        return results


def _searched(prompt: EncodedPrompt) -> IdRow:
    """Returns the prompt with an id in place of images that no output has, so that no match reaches over one, and that
    ends a draft."""
    rows, at = list[IdRow](), 0
    for span in prompt.media:
        rows += [prompt.token_ids[at : span.start], IdRow([LARGEST_ID])]
        at = span.end
    return IdRow.joined((*rows, prompt.token_ids[at:])) if rows else prompt.token_ids


def _drafts(
    control: DepthControl, model: ModelDescription, rows: Mapping[SequenceId, SequenceDrafts], most: int
) -> Mapping[SequenceId, Draft]:
    """Returns the drafts of the next step, of at most `most` tokens; empty for a plain step."""
    found = {id: proposal for id, drafts in rows.items() if (proposal := drafts.look_up(most))}
    depth = 0
    if len(found) == len(rows):
        longest = min(len(proposal.token_ids) for proposal in found.values()) - 1
        depth = control.depth(len(rows), longest, prod(proposal.probability for proposal in found.values()))
    own_depth = control.depth(len(rows), most) if model.own_drafter is not None else 0
    if depth:
        return {id: Draft(ids[: 1 + depth], own_depth, drafter) for id, (ids, drafter, _) in found.items()}
    return dict.fromkeys(rows, Draft((), own_depth)) if own_depth else NO_DRAFTS


def _learn(control: DepthControl, model: ModelDescription, results: Sequence[DecodeResult], ms: float) -> None:
    """Takes the results of a step and its duration into account."""
    verified = [result for result in results if result.num_proposed]
    control.record(
        len(results),
        ms,
        max((result.num_proposed for result in verified), default=0),
        min((result.num_accepted for result in verified), default=0),
        is_own=any(result.drafter is model.own_drafter for result in verified),
    )
