"""The memory check of a request before it is submitted.

    must fit beside                              otherwise
    its own model and pinned ones                it can never be computed: 400 with the numbers
    all models in use                            memory is short at present: the answer is shortened, and without
                                                 room for the shortest one it is 503, which clients repeat
    idle models as well                          idle models are unloaded first

What the process holds itself counts in each row, because no end of a request gives it back. A request that fits, but
not beside the running ones, waits in the engine's queue.
"""

from dataclasses import replace

from application.ports.engine import Engine
from application.services.text_side.answers.prompt_encoder import prompt_field
from application.services.text_side.models.model_pool import ModelPool
from domain.byte_size import format_bytes
from domain.errors import MemoryBusy, PrefillMemoryExceeded
from domain.memory.needs import Load
from domain.memory.preflight import Preflight, Refusal
from domain.memory.shape import ImageSizes
from domain.models.model_card import ModelDescription
from domain.prefix.prompt_content import AHEAD_CHUNKS, EncodedPrompt
from domain.request.request import GenerationRequest


class MemoryCheck:
    """Event loop only. Every generation goes through `answer_length`."""

    def __init__(self, engine: Engine, pool: ModelPool) -> None:
        self._engine = engine
        self._pool = pool

    async def answer_length(
        self, request: GenerationRequest, prompt: EncodedPrompt, model: ModelDescription, max_new: int, whole: int = 0
    ) -> int:
        """Returns the most tokens that the answer may have: at most `max_new`, at least `min_tokens`. Unloads idle
        models to make room. The caller holds a lease on the model. `whole`: tokens that are computed in one pass.

        Raises PrefillMemoryExceeded for a request that can never fit, and MemoryBusy for one that does not fit at
        present. Reused tokens count like all others: they occupy memory as well."""
        status = self._engine.status()
        limits, ledger = status.limits, status.ledger
        if limits is None or ledger is None:
            return max_new
        images = ImageSizes.of([span.length for span in prompt.media], AHEAD_CHUNKS * status.prefill_chunk)
        load = Load(
            num_prompt=len(prompt.token_ids),
            num_new=max_new,
            chunk=max(status.prefill_chunk, whole, images.largest if model.image_is_whole else 0),
            num_choices=request.num_choices,
            is_scored=request.num_prompt_logprobs is not None,
            images=images,
        )
        least = min(max(request.stop.min_tokens, 1), max_new)
        pinned_bytes, used_bytes = (
            self._pool.fixed_bytes(model.id, with_leased=with_leased) + ledger.other_bytes
            for with_leased in (False, True)
        )
        now = Preflight(model.memory, limits.hard_bytes, used_bytes)
        most = max_new if now.fits(load) else now.most_new(load)
        if most < least:
            ever = replace(now, fixed_bytes=pinned_bytes)
            if refusal := ever.refusal(replace(load, num_new=least)):
                raise _never(request, refusal, model)
            raise _not_now(request, now, load, least)
        needed_bytes = now.needed_bytes(replace(load, num_new=most))
        await self._pool.make_room(limits.hard_bytes - ledger.other_bytes - needed_bytes)
        return most


def _not_now(request: GenerationRequest, now: Preflight, load: Load, least: int) -> MemoryBusy:
    needed_bytes, available_bytes = now.needed_bytes(replace(load, num_new=least)), max(0, now.available_bytes)
    return MemoryBusy(
        f"{prompt_field(request.prompt)} has {_tokens(load)};"
        f"{f' with an answer of {least}' if least else ''} they need about"
        f" {format_bytes(needed_bytes)} of memory, and {format_bytes(available_bytes)} are available at present;"
        " try again later"
    )


def _never(request: GenerationRequest, refusal: Refusal, model: ModelDescription) -> PrefillMemoryExceeded:
    load, field = refusal.load, prompt_field(request.prompt)
    answers = f"{load.num_choices} answers" if load.num_choices > 1 else "an answer"
    return PrefillMemoryExceeded(
        f"{field} has {_tokens(load)};"
        f"{f' with {answers} of {load.num_new}' if load.num_new else ''} they need about"
        f" {format_bytes(refusal.needed_bytes)} of memory in {model.id}, and {format_bytes(refusal.available_bytes)} of"
        f" {format_bytes(refusal.limit_bytes)} are available: a prompt of {refusal.most_prompt} tokens fits"
        + (f', and this one would with model.kv_bits = "{refusal.kv_bits}"' if refusal.kv_bits else ""),
        param=field,
        num_prompt=load.num_prompt,
        context_length=refusal.most_prompt + load.num_new,
        estimated_bytes=refusal.needed_bytes,
        available_bytes=refusal.available_bytes,
        limit_bytes=refusal.limit_bytes,
        largest_prompt=refusal.most_prompt,
    )


def _tokens(load: Load) -> str:
    largest = f", {load.images.largest} of them in the largest image" if load.images.largest else ""
    return f"{load.num_prompt} tokens{largest}"
