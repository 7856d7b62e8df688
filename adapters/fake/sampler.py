"""The choice of a token from the toy model's state: a few candidates with logits, then a grammar and sampling."""

from collections import Counter
from dataclasses import replace
from math import exp, log

from adapters.fake.leaves import GOLDEN, mix, unit
from adapters.fake.options import FakeOptions
from application.ports.compute import DecodeStart
from application.ports.token_constraint import AllowedTokens
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
