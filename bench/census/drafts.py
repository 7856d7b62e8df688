"""Decoding with drafts against plain decoding, for one model: the tokens, and the log probabilities behind them.

Three sequences, greedy and drawn, whose prompts end before, at and beyond the families' windows, are decoded plainly.
The first is then decoded alone, and all three together, with drafts that are right, right by chance, wrong and absent
in turn. The third joins later, and the first takes a step without the others. In the middle its state is captured,
restored and continued with drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from application.ports.compute import DecodeStart, Draft, LoadedModel
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.request.sampling import SamplingParams
from domain.request.stream import TokenLogprob
from tests.support.stores.state_replay import Captured, open_at, prompt_of

NUM_NEW = 14
DEPTH = 4
SHARES = (1.0, 0.7, None, 0.0, 0.7)
"""Numbers of right tokens in a draft, in turn; None for no draft."""

NEAR_TIE = 1e-4
"""Rounding has decided between tokens whose log probabilities differ by no more than this."""

TOLERANCE = 1e-3

DRAWN = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.2, num_logprobs=20)
GREEDY = SamplingParams(temperature=0, num_logprobs=20)


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence to decode: its prompt, settings and seed."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    joins_at: int = 0
    """The number of the first stream's tokens."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The result. `difference`: the largest of a log probability up to the first other token. `num_ties`: streams with
    another token where two were equally likely; `wrong`: descriptions of those that have one anyhow."""

    difference: float = 0.0
    num_ties: int = 0
    num_accepted: int = 0
    wrong: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Empty if all is as without drafts."""
        if not self.num_accepted:
            return "none was accepted"
        differs = f"differs by {self.difference:.1e}" if self.difference > TOLERANCE else ""
        return "; ".join(filter(None, [*self.wrong, differs]))

    def __str__(self) -> str:
        ties = f" ({self.num_ties} near-ties)" if self.num_ties else ""
        return f"{self.difference:.0e}{ties}"

    def with_stream(self, name: str, found: Sequence[TokenLogprob], plain: Sequence[TokenLogprob]) -> "Drafted":
        """Returns the result with one more stream in it."""
        difference, num_ties, wrong = self.difference, self.num_ties, self.wrong
        for place, (one, other) in enumerate(zip(found, plain, strict=True)):
            distance = _distance(one, other)
            difference = max(difference, distance)
            if one.token_id != other.token_id:
                is_tie = distance <= NEAR_TIE
                num_ties += is_tie
                wrong += () if is_tie else (f"{name}: token {place} differs",)
                break
        return Drafted(difference, num_ties, self.num_accepted, wrong)


STREAMS = (
    Stream(prompt_of(71), GREEDY, 1),
    Stream(prompt_of(39, 1), DRAWN, 2),
    Stream(prompt_of(28, 2), DRAWN, 3, joins_at=3),
)


def compare_drafts(model: LoadedModel) -> Drafted:
    """Decodes with and without drafts. Raises RuntimeError for a decode step that fails."""
    plain = [_decoded(model, [stream])[0][0] for stream in STREAMS]
    found = Drafted()
    for streams in (STREAMS[:1], STREAMS):
        tokens = [[one.token_id for one in one_plain] for one_plain in plain[: len(streams)]]
        streams_found, num_accepted, restored = _decoded(model, streams, tokens)
        found = Drafted(found.difference, found.num_ties, found.num_accepted + num_accepted, found.wrong)
        how = "alone" if len(streams) == 1 else "together"
        for index, one in enumerate(streams_found):
            found = found.with_stream(f"{how} {index}", one, plain[index])
        if restored:
            found = found.with_stream(f"{how}, restored", restored, plain[0][-len(restored) :])
    return found


def _decoded(
    model: LoadedModel, streams: Sequence[Stream], answers: Sequence[Sequence[int]] | None = None
) -> tuple[list[list[TokenLogprob]], int, list[TokenLogprob]]:
    """Returns the tokens of each stream, the number of accepted tokens, and the first stream's tokens as they are
    continued from its state in the middle. `answers`: to draft from; None for plain decoding."""
    waiting, ids = list(streams), list[SequenceId]()
    found: dict[SequenceId, list[TokenLogprob]] = {}
    num_accepted, num_steps, chance, restored = 0, 0, Random(1), list[TokenLogprob]()
    while waiting or any(len(tokens) < NUM_NEW for tokens in found.values()):
        while waiting and (not ids or len(found[ids[0]]) >= waiting[0].joins_at):
            ids.append(_start(model, waiting.pop(0)))
            found[ids[-1]] = []
        left = [id for id in ids if len(found[id]) < NUM_NEW]
        num_steps += 1
        if num_steps % 4 == 0:
            left = left[:1]
        drafts: dict[SequenceId, Draft] = {}
        for id, answer in zip(ids, answers or (), strict=False):
            drafts[id] = _draft(answer[len(found[id]) :], num_steps, chance)
        for result in model.decode(left, drafts):
            if result.error is not None:
                raise RuntimeError(f"decode failed: {result.error}")
            found[result.id] += result.logprobs
            num_accepted += result.num_accepted
        if answers and not restored and model.description.layout.is_reusable and len(found[ids[0]]) >= NUM_NEW // 2:
            restored = _continued(model, ids[0], streams[0], answers[0])
    model.close(ids)
    return [tokens[:NUM_NEW] for tokens in found.values()], num_accepted, restored


def _start(model: LoadedModel, stream: Stream) -> SequenceId:
    id = open_at(model, stream.prompt)
    model.start_decode(id, stream.prompt[-1:], DecodeStart(IdRow(stream.prompt), stream.sampling, seed=stream.seed))
    return id


def _draft(rest: Sequence[int], num_steps: int, chance: Random) -> Draft:
    """A draft of the next token and DEPTH behind it: right, right by chance, wrong, or none."""
    share = SHARES[num_steps % len(SHARES)]
    if share is None:
        return Draft()
    guesses = (token if chance.random() < share else (token + 1) % 100 for token in rest[1 : 1 + DEPTH])
    return Draft((*rest[:1], *guesses))


def _continued(model: LoadedModel, id: SequenceId, stream: Stream, answer: Sequence[int]) -> list[TokenLogprob]:
    """Captures the state of a decoding sequence and decodes from a copy of it, with right drafts."""
    position = model.position(id)
    known = (*stream.prompt, *answer)[: position + 1]
    copied = Captured(position, snapshot=model.capture_snapshot(id, 0))
    other, num_out = open_at(model, known, copied), len(known) - len(stream.prompt)
    start = DecodeStart(IdRow(stream.prompt), stream.sampling, seed=stream.seed, output_ids=tuple(answer[:num_out]))
    model.start_decode(other, known[-1:], start)
    found: list[TokenLogprob] = []
    while num_out + len(found) < NUM_NEW:
        rest = tuple(answer[num_out + len(found) :])
        found += model.decode([other], {other: Draft(rest[: 1 + DEPTH])})[0].logprobs
    model.close([other])
    return found


def _distance(one: TokenLogprob, other: TokenLogprob) -> float:
    """The largest difference of a log probability that both have."""
    mine, theirs = dict(one.top), dict(other.top)
    return max((abs(mine[token] - theirs[token]) for token in mine.keys() & theirs.keys()), default=float("inf"))
