"""What every answer of this dialect needs to know of its request, streamed or not."""

from collections.abc import Sequence
from dataclasses import dataclass

from application.ports.tokenizer import Tokenizer
from application.services.text_side.generation import Generation
from domain.errors import ServerUnavailable
from domain.ids import RequestId
from domain.request import FinishReason
from domain.stream import Finished


@dataclass(frozen=True, slots=True)
class AnswerContext:
    """`created`: Unix seconds. `choices_per_prompt`: n. `prompts` and `echoes` have an entry a prompt."""

    id: RequestId
    model: str
    created: int
    tokenizer: Tokenizer
    choices_per_prompt: int
    prompts: tuple[tuple[int, ...], ...]
    has_logprobs: bool
    returns_token_ids: bool
    includes_usage: bool
    echoes: tuple[str, ...] = ()

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.choices_per_prompt

    def prompt_ids(self, choice: int) -> list[int]:
        return list(self.prompts[choice // self.choices_per_prompt])

    def echo(self, choice: int) -> str:
        return self.echoes[choice // self.choices_per_prompt] if self.echoes else ""


def prompts_of(generations: Sequence[Generation]) -> tuple[tuple[int, ...], ...]:
    return tuple(generation.prompt_ids for generation in generations)


def finish_reason(finished: Finished | None) -> str:
    """`stop` or `length`."""
    if finished is None:
        raise ServerUnavailable("the completion did not finish")
    return "length" if finished.reason is FinishReason.LENGTH else "stop"


__all__ = ("AnswerContext", "finish_reason", "prompts_of")
