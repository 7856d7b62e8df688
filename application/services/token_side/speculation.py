"""Speculation: drafts for the sequences of a decode step, proposed before it and learnt from after it.

    drafts     looked up in prompt, output and predicted text, or made by the model's own drafter in the step itself
    depth      `domain.speculation.gain` decides, by the costs measured at load and by what was accepted lately
    no draft   a row of the model has none, too many rows decode, memory is short, the request or the model has it off

All rows of a model draft or none does, because rows that share a forward pass share its width. Tokens do not depend on
any of this. Compute thread only.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from application.ports.compute import NO_DRAFTS, DecodeResult, Draft, LoadedModel
from application.ports.engine import Submission
from application.services.token_side.event_batcher import EventBatcher
from domain.ids import ModelId, SequenceId
from domain.models.model_card import ModelDescription
from domain.scheduling.sequence import Sequence as TokenSequence
from domain.speculation.acceptance import Acceptance
from domain.speculation.drafter import Drafter
from domain.speculation.gain import MOST_ROWS, DepthControl, WidthCosts
from domain.speculation.lookup import NgramLookup, Proposal


class SequenceDrafts:
    """The drafts of one sequence. `width`: the most tokens that a step computes. `own`: the acceptance of the model's
    own drafter; None where it may not be used."""

    def __init__(self, sequence: TokenSequence, submission: Submission, model: ModelDescription) -> None:
        self.width = 1 + (model.width_costs.most_depth if model.width_costs is not None else 0)
        self.own = Acceptance() if model.own_drafter and model.speculation.allows(model.own_drafter) else None
        self._own_drafter = model.own_drafter
        self._sequence, self._num_seen = sequence, len(sequence.output_ids)
        self._lookup: NgramLookup | None = None
        if model.speculation.allows(Drafter.NGRAM):
            self._lookup = NgramLookup(submission.prompt.token_ids, sequence.output_ids, submission.predicted_ids)
        self._proposal: Proposal | None = None

    @property
    def num_wanted(self) -> int:
        """The most draft tokens that the answer has room for, beside the token of a plain step."""
        return self._sequence.max_new_tokens - len(self._sequence.output_ids) - 1

    @property
    def is_steady(self) -> bool:
        """True once a step computes one pass: the first waits for the prompt, and the second feeds two tokens."""
        return len(self._sequence.output_ids) > 1

    def look_up(self, depth: int) -> Proposal | None:
        """Returns the draft that follows the output so far, at most 1 + `depth` tokens: the first is one that a plain
        step gives as well."""
        if self._lookup is None:
            return None
        output_ids = self._sequence.output_ids
        self._lookup.extend(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        self._proposal = self._lookup.propose(1 + depth)
        return self._proposal

    def drafter_of(self, result: DecodeResult) -> Drafter | None:
        """Returns the drafter whose tokens the last step verified; None for a plain step."""
        own = self._own_drafter if result.is_own_draft else self._proposal and self._proposal.drafter
        return own if result.num_proposed else None


Rows: TypeAlias = Mapping[SequenceId, SequenceDrafts | None]
"""The decoding sequences of one model; None for one that does not draft."""


def drafts_of(sequence: TokenSequence, submission: Submission, model: ModelDescription) -> SequenceDrafts | None:
    """Returns the drafts of a sequence that begins to decode; None if it may not draft."""
    if not submission.speculates or model.width_costs is None or not any(map(model.speculation.allows, Drafter)):
        return None
    return SequenceDrafts(sequence, submission, model)


class Speculation:
    """The decode steps of all models, with drafts."""

    def __init__(self, batcher: EventBatcher) -> None:
        self._batcher = batcher
        self._controls: dict[ModelId, DepthControl] = {}

    def decode(self, model: LoadedModel, rows: Rows) -> Sequence[DecodeResult]:
        """Runs a decode step of these rows, with drafts where they pay. A fault of the drafts costs only the drafts."""
        described = model.description
        is_steady = all(drafts is not None and drafts.is_steady for drafts in rows.values())
        drafts = self._batcher.attempt("speculation.draft", lambda: self._drafts(described, rows)) or NO_DRAFTS
        begun_ns = self._batcher.now_ns()
        results = model.decode(list(rows), drafts)
        ms = (self._batcher.now_ns() - begun_ns) / 1e6 if is_steady else 0.0
        self._batcher.attempt("speculation.learn", lambda: self._learn(described, rows, results, ms))
        return results

    def _drafts(self, model: ModelDescription, rows: Rows) -> Mapping[SequenceId, Draft]:
        """Returns the drafts of the next step; empty for a plain step."""
        drafting = {id: drafts for id, drafts in rows.items() if drafts is not None}
        if model.width_costs is None or not 0 < len(drafting) == len(rows) <= MOST_ROWS:
            return NO_DRAFTS
        control = self._control(model.id, model.width_costs)
        most = min(control.costs.most_depth, *(drafts.num_wanted for drafts in drafting.values()))
        if most <= 0:
            return NO_DRAFTS
        found = {id: proposal for id, drafts in drafting.items() if (proposal := drafts.look_up(most)) is not None}
        depth = own_depth = 0
        if len(found) == len(rows):
            longest = min(len(proposal.token_ids) for proposal in found.values()) - 1
            depth = control.depth([proposal.probability for proposal in found.values()], longest)
        own = [drafts.own.probability for drafts in drafting.values() if drafts.own is not None]
        if len(own) == len(rows):
            own_depth = control.depth(own, most, is_drafting=True)
        if not depth and not own_depth:
            return NO_DRAFTS
        tokens = {id: proposal.token_ids[: 1 + depth] for id, proposal in found.items()} if depth else {}
        return {id: Draft(tokens.get(id, ()), own_depth) for id in rows}

    def _learn(self, model: ModelDescription, rows: Rows, results: Sequence[DecodeResult], ms: float) -> None:
        """Takes the results of a step and its duration into account; 0: it says nothing about a step's cost."""
        control = self._controls.get(model.id)
        if control is None or not results:
            return
        verified = [result for result in results if result.num_proposed]
        for result in verified:
            drafts = rows.get(result.id)
            if result.is_own_draft and drafts is not None and drafts.own is not None:
                drafts.own.observe(result.num_proposed, result.num_accepted)
        control.record(
            len(results),
            max((result.num_proposed for result in verified), default=0),
            min((result.num_accepted for result in verified), default=0),
            is_drafting=any(result.is_own_draft for result in verified),
            ms=ms,
        )

    def _control(self, id: ModelId, costs: WidthCosts) -> DepthControl:
        control = self._controls.get(id)
        if control is None or control.measured is not costs:  # loaded, or loaded once more
            control = self._controls[id] = DepthControl(costs)
        return control
