"""The choice of a token from the toy model's state: a few candidates with logits, then a grammar and sampling."""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from math import exp, log

from adapters.fake.leaves import GOLDEN, mix, unit
from adapters.fake.options import FakeOptions
from application.ports.compute import DecodeStart
from application.ports.token_constraint import AllowedTokens, TokenConstraint
from domain.errors import ComputeFailed
from domain.ids import ModelId
from domain.models.model_card import Vocabulary
from domain.request.grammar import Grammar, GrammarKind
from domain.request.sampling import SamplingParams
from domain.request.stream import TokenLogprob

NUM_CANDIDATES = 8
_UNLIKELY = -20.0


def next_token(
    state: int, options: FakeOptions, start: DecodeStart, output_ids: list[int]
) -> tuple[int, TokenLogprob | None]:
    """Chooses the token after `state` (64 bits): greedily, or as a function of (state, seed, index)."""
    first = None
    if options.reply is not None:
        answer = options.reply(start.prompt_ids)
        first = answer[len(output_ids)] if len(output_ids) < len(answer) else options.eos_id
    own = _own_logits(state, options, first)
    allowed = start.constraint.allowed() if start.constraint is not None else None
    if allowed is not None:
        own = _allowed_logits(own, allowed, state)
    logits = _adjusted(own, start, output_ids, allowed)
    sampling = start.sampling
    if sampling.is_greedy:
        chosen = max(logits, key=lambda token: (logits[token], -token))
    else:
        chosen = _sample(logits, sampling, start.seed, len(output_ids))
    if sampling.num_logprobs is None:
        return chosen, None
    return chosen, _logprob(own, chosen, sampling.num_logprobs)


def score_token(state: int, options: FakeOptions, token: int, num_tops: int) -> TokenLogprob:
    """The log probability of `token` after `state`, without the scripted answer."""
    own = _own_logits(state, options, None)
    rank = 1 + sum(logit > own.get(token, _UNLIKELY) for logit in own.values())
    return replace(_logprob(own, token, num_tops), rank=rank)


def _logprob(own: dict[int, float], token: int, num_tops: int) -> TokenLogprob:
    """The log probability by the model's own distribution, in which all but the candidates are very unlikely."""
    likely = _log_softmax(own)
    total = max(own.values()) - max(likely.values())
    ranked = sorted(likely.items(), key=lambda item: (-item[1], item[0]))
    return TokenLogprob(token, likely.get(token, _UNLIKELY - total), tuple(ranked[:num_tops]))


def _own_logits(state: int, options: FakeOptions, first: int | None) -> dict[int, float]:
    """`first`: the next token of a scripted answer."""
    logits: dict[int, float] = {} if first is None else {first: 100.0}
    alphabet = options.alphabet
    for rank in range(NUM_CANDIDATES):
        draw = mix(state + rank * GOLDEN)
        logits.setdefault(alphabet[draw % len(alphabet)], 4.0 - 0.5 * rank)
    if options.reply is None and options.eos_every and mix(state ^ GOLDEN) % options.eos_every == 0:
        logits[options.eos_id] = 8.0
    return logits


def _adjusted(
    own: dict[int, float], start: DecodeStart, output_ids: list[int], allowed: AllowedTokens | None
) -> dict[int, float]:
    logits = dict(own)
    for token, bias in start.sampling.logit_bias:
        if allowed is None or allowed.allows(token):
            logits[token] = logits.get(token, _UNLIKELY) + bias
    _penalise(logits, start, output_ids)
    if len(output_ids) < start.min_tokens and not (allowed is not None and allowed.must_end):
        for end in start.eos_token_ids:
            logits.pop(end, None)
    return logits


def _allowed_logits(logits: dict[int, float], allowed: AllowedTokens, state: int) -> dict[int, float]:
    """The candidates that a grammar allows, and a few other allowed tokens."""
    found = {token: logit for token, logit in logits.items() if allowed.allows(token)}
    others = [token for token in range(len(allowed.mask) * 8) if allowed.allows(token) and token not in found]
    for rank in range(min(NUM_CANDIDATES, len(others))):
        found[others.pop(mix(state + rank * GOLDEN) % len(others))] = -0.5 * rank
    return found


def _penalise(logits: dict[int, float], start: DecodeStart, output_ids: list[int]) -> None:
    sampling = start.sampling
    if not sampling.has_penalties:
        return
    generated = Counter(output_ids)
    seen = generated.keys() | set(start.prompt_ids)
    for token, logit in logits.items():
        value = logit
        if token in seen:
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        if token in generated:
            value -= sampling.presence_penalty + sampling.frequency_penalty * generated[token]
        logits[token] = value


def _sample(logits: dict[int, float], sampling: SamplingParams, seed: int, index: int) -> int:
    scaled = _log_softmax({token: logit / sampling.temperature for token, logit in logits.items()})
    ranked = sorted(scaled, key=lambda token: (-scaled[token], token))
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    floor = scaled[ranked[0]] + log(sampling.min_p) if sampling.min_p > 0 else -float("inf")
    kept: list[int] = []
    mass = 0.0
    for token in ranked:
        if kept and (mass >= sampling.top_p or scaled[token] < floor):
            break
        kept.append(token)
        mass += exp(scaled[token])
    noise = mix(seed * GOLDEN + index)
    return max(kept, key=lambda token: scaled[token] - log(-log(unit(noise ^ (token * GOLDEN)))))


def _log_softmax(logits: dict[int, float]) -> dict[int, float]:
    top = max(logits.values())
    total = log(sum(exp(logit - top) for logit in logits.values())) + top
    return {token: logit - total for token, logit in logits.items()}


class FakeConstraint:
    """A TokenConstraint: the answer is one of a list of texts, one byte a token. Masks are computed by `workers`, so
    that a test can delay them."""

    def __init__(
        self, workers: Executor, answers: frozenset[bytes], ends: frozenset[int], on_ready: Callable[[], None]
    ) -> None:
        self._workers = workers
        self._answers = answers
        self._ends = ends
        self._text = b""
        self._has_ended = False
        self._next: Future[AllowedTokens] = workers.submit(self._compute)
        self._next.add_done_callback(lambda _: on_ready())

    def poll(self) -> bool:
        return self._next.done()

    def allowed(self) -> AllowedTokens:
        return self._next.result()

    def accept(self, token_id: int) -> None:
        if not self.allowed().allows(token_id):
            raise ComputeFailed(f"the grammar does not allow token {token_id} here")
        if token_id in self._ends:
            self._has_ended = True
        else:
            self._text += bytes([token_id])
        self._next = self._workers.submit(self._compute)

    def _compute(self) -> AllowedTokens:
        begun = [answer for answer in self._answers if answer.startswith(self._text)]
        following = {answer[len(self._text)] for answer in begun if len(answer) > len(self._text)}
        if self._has_ended:
            following.clear()
        if self._has_ended or self._text in self._answers:
            following |= self._ends
        bits = sum(1 << id for id in following)
        return AllowedTokens(bits.to_bytes((max(following) + 8) // 8, "little"), must_end=following <= self._ends)


class FakeCompiler:
    """A ConstraintCompiler for lists of choices."""

    def __init__(self, workers: Executor) -> None:
        self._workers = workers
        self._models: set[ModelId] = set()
        self._wake: Callable[[], None] = lambda: None

    def attach(self, id: ModelId, vocabulary: Vocabulary | None) -> None:
        self._models.add(id)

    def detach(self, id: ModelId) -> None:
        self._models.discard(id)

    def compile(self, id: ModelId, grammar: Grammar, eos_token_ids: frozenset[int], salt: str = "") -> TokenConstraint:
        if id not in self._models or not eos_token_ids or grammar.kind is not GrammarKind.CHOICE:
            raise ComputeFailed(f"{id} is not loaded, has no EOS token, or the grammar is not a list of choices")
        answers = frozenset(text.encode() for text in json.loads(grammar.text))
        return FakeConstraint(self._workers, answers, eos_token_ids, self._wake)

    def wake_with(self, wake: Callable[[], None]) -> None:
        self._wake = wake
