"""Whether a request fits in memory at all, asked before it is submitted: what never can is refused, with the numbers.

What fits, but not beside what runs now, is no matter of this: the engine lets it wait.
"""

from dataclasses import replace

from application.ports.engine import Engine
from application.services.text_side.prompt_encoder import prompt_field
from domain.byte_size import format_bytes
from domain.errors import PrefillMemoryExceeded
from domain.memory.demand import LEAST_CHUNK
from domain.memory.preflight import Demand, Preflight, Refusal
from domain.model_card import ModelDescription
from domain.prompt_content import EncodedPrompt
from domain.request import GenerationRequest
from domain.sampling import StopRules


class MemoryCheck:
    """Event loop only. Every generation goes through `answer_length`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def answer_length(
        self, request: GenerationRequest, prompt: EncodedPrompt, model: ModelDescription, max_new: int
    ) -> int:
        """How many tokens the answer may have, `max_new` at most. Less only where the client left that to the server.
        Raises PrefillMemoryExceeded.

        What of the prompt is reused only the engine knows, once it looks: chunks are as short as they get then, so
        that nothing of it would be a smaller peak."""
        status = self._engine.status()
        preflight = Preflight.of(model.memory, status.limits, status.ledger, LEAST_CHUNK)
        if preflight is None:
            return max_new
        demand = Demand(
            num_prompt=len(prompt.token_ids),
            num_new=max_new,
            num_choices=request.num_choices,
            is_scored=request.num_prompt_logprobs is not None,
        )
        if preflight.fits(demand):
            return max_new
        least = _least(request.stop, max_new)
        most = preflight.most_new(demand)
        if most >= least:
            return most
        refusal = preflight.refusal(replace(demand, num_new=least), max(request.stop.min_tokens, 1))
        assert refusal is not None, "the shortest answer does not fit"
        raise _error(request, refusal, model)


def _least(rules: StopRules, max_new: int) -> int:
    """The shortest answer that is what the client asked for."""
    is_free = rules.max_tokens is None or rules.fits_room
    return min(max(rules.min_tokens, 1), max_new) if is_free else max_new


def _error(request: GenerationRequest, refusal: Refusal, model: ModelDescription) -> PrefillMemoryExceeded:
    demand, most_new = refusal.demand, refusal.most_new
    field = prompt_field(request.prompt)
    answers = f"{demand.num_choices} answers" if demand.num_choices > 1 else "an answer"
    instead = f", or this one with {answers} of {most_new}" if most_new else ""
    return PrefillMemoryExceeded(
        f"{field} has {demand.num_prompt} tokens; with {answers} of {demand.num_new} they take about"
        f" {format_bytes(refusal.needed_bytes)} of memory in {model.id}, and {format_bytes(refusal.available_bytes)} of"
        f" {format_bytes(refusal.limit_bytes)} are there for it: a prompt of {refusal.most_prompt} fits{instead}",
        param="max_tokens" if most_new else field,
        num_prompt=demand.num_prompt,
        num_wanted=demand.num_new if most_new else 0,
        context_length=demand.num_prompt + most_new if most_new else refusal.most_prompt + demand.num_new,
        estimated_bytes=refusal.needed_bytes,
        available_bytes=refusal.available_bytes,
        limit_bytes=refusal.limit_bytes,
        largest_prompt=refusal.most_prompt,
    )


__all__ = ("MemoryCheck",)
