"""Starts all generations of one HTTP request, or none."""

from collections.abc import Sequence

from application.services.text_side.answer import Answer
from application.services.text_side.generation import Generation
from application.use_cases.list_models import ModelEntry
from domain.client import Client
from domain.errors import InvalidRequest, ModelNotFound
from domain.request import GenerationRequest
from interfaces.http.dialect import Asked
from interfaces.http.services import Services

MAX_PROMPT_LOGPROBS = 2**19
"""Values of prompt tokens and their alternatives in one answer: some 100 MB while it is made."""


async def start_all(asked: Asked, requests: Sequence[GenerationRequest]) -> Answer:
    """Whatever is wrong with any of them is raised here, before any byte is sent; then nothing is left running."""
    started: list[Generation] = []
    try:
        for request in requests:
            started.append(await asked.services.generate.start(request, started[0].model if started else None))
            _check_scores(started)
        return Answer(started)
    except ModelNotFound as error:
        _close(started)
        raise await naming_what_is_served(asked.services, error, asked.visit.client) from None
    except BaseException:
        _close(started)
        raise


async def naming_what_is_served(services: Services, error: ModelNotFound, client: Client) -> ModelNotFound:
    """The same error, with the models that would have been found."""
    served = ", ".join(entry.source.id for entry in await models_for(services, client)) or "none"
    return ModelNotFound(f"{error.message}; served here: {served}", param="model")


async def models_for(services: Services, client: Client) -> list[ModelEntry]:
    """Those that the client may use."""
    return [entry for entry in await services.list_models.all() if client.may_use(entry.source.id)]


def _check_scores(started: Sequence[Generation]) -> None:
    num_values = 0
    for generation in started:
        if (num_tops := generation.request.num_prompt_logprobs) is not None:
            num_values += len(generation.prompt_ids) * (1 + num_tops) * generation.request.num_choices
    if num_values > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"prompt_logprobs would report {num_values} values in one answer; at most {MAX_PROMPT_LOGPROBS} are:"
            " send fewer prompts at once, or ask for fewer alternatives",
            param="prompt_logprobs",
        )


def _close(generations: Sequence[Generation]) -> None:
    for generation in generations:
        generation.close()


__all__ = ("models_for", "naming_what_is_served", "start_all")
