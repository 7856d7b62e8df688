"""A request for several choices as one request a choice, for an engine that draws one from each prompt."""

from collections.abc import Iterator
from dataclasses import replace

from domain.request import GenerationRequest
from domain.sampling import MAX_SEED
from interfaces.http.start import choice_id


def each_choice(request: GenerationRequest) -> Iterator[GenerationRequest]:
    """The seed of choice i is the request's plus i."""
    for choice in range(request.num_choices):
        sampling = replace(request.sampling, seed=_seed(request.sampling.seed, choice))
        yield replace(request, id=choice_id(request.id, choice), sampling=sampling, num_choices=1)


def _seed(seed: int | None, choice: int) -> int | None:
    return None if seed is None else (seed + choice + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - MAX_SEED - 1


__all__ = ("each_choice",)
