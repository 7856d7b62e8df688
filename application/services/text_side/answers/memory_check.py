"""Whether a request fits in memory at all, asked before it is submitted.

    beside its own model and pinned ones         what is over this can never be computed: a 400 with the numbers
    beside all models that are used now,         over this, memory is short at present: an answer of open length
    and what the process was read to hold        gets shorter, any other request a 503 that clients repeat
    beside idle models as well                   over this, idle models are unloaded first

What fits, but not beside the requests that run, is no matter of this: the engine lets it wait.
"""

from dataclasses import replace

from application.ports.engine import Engine
from application.services.text_side.answers.prompt_encoder import prompt_field
from application.services.text_side.models.model_pool import ModelPool
from domain.byte_size import format_bytes
from domain.errors import MemoryBusy, PrefillMemoryExceeded
from domain.memory.preflight import Demand, Preflight, Refusal
from domain.models.model_card import ModelDescription
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.request import GenerationRequest
from domain.request.sampling import StopRules


class MemoryCheck:
    """Event loop only. Every generation goes through `answer_length`."""

    def __init__(self, engine: Engine, pool: ModelPool) -> None:
        self._engine = engine
        self._pool = pool

    async def answer_length(
        self, request: GenerationRequest, prompt: EncodedPrompt, model: ModelDescription, max_new: int
    ) -> int:
        """How many tokens the answer may have, `max_new` at most; less only where the client left that to the server.
        Unloads idle models that are in the way. The caller holds a lease on the model.

        Raises PrefillMemoryExceeded where it could never fit, and MemoryBusy where it does not at present. Tokens that
        are reused count like all others: they lie in memory as well."""
        status = self._engine.status()
        limits, ledger = status.limits, status.ledger
        if limits is None or ledger is None:
            return max_new
        demand = Demand(
            num_prompt=len(prompt.token_ids),
            num_new=max_new,
            num_choices=request.num_choices,
            is_scored=request.num_prompt_logprobs is not None,
        )
        least = _least(request.stop, max_new)
        pinned_bytes = self._pool.fixed_bytes(model.id, with_leased=False)
        used_bytes = self._pool.fixed_bytes(model.id, with_leased=True) + ledger.other_bytes
        now = Preflight(model.memory, limits.hard_bytes, used_bytes, status.prefill_chunk)
        most = max_new if now.fits(demand) else now.most_new(demand)
        if most < least:
            ever = replace(now, fixed_bytes=pinned_bytes)
            if refusal := ever.refusal(replace(demand, num_new=least), max(request.stop.min_tokens, 1)):
                raise _never(request, refusal, model)
            raise _not_now(request, now, demand, least)
        needed_bytes = now.needed_bytes(replace(demand, num_new=most))
        await self._pool.make_room(limits.hard_bytes - ledger.other_bytes - needed_bytes)
        return most


def _least(rules: StopRules, max_new: int) -> int:
    """The shortest answer that is what the client asked for."""
    is_free = rules.max_tokens is None or rules.fits_room
    return min(max(rules.min_tokens, 1), max_new) if is_free else max_new


def _not_now(request: GenerationRequest, now: Preflight, demand: Demand, least: int) -> MemoryBusy:
    needed_bytes, available_bytes = now.needed_bytes(replace(demand, num_new=least)), max(0, now.available_bytes)
    return MemoryBusy(
        f"{prompt_field(request.prompt)} has {demand.num_prompt} tokens; with an answer of {least} they take about"
        f" {format_bytes(needed_bytes)} of memory, and {format_bytes(available_bytes)} are there at present;"
        " try again later"
    )


def _never(request: GenerationRequest, refusal: Refusal, model: ModelDescription) -> PrefillMemoryExceeded:
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
