"""The request fields that chat and text completions share."""

from typing import Annotated

from msgspec import Meta, Struct

from domain.ids import RequestId
from domain.request import GenerationRequest, Prompt
from interfaces.http.dialect import Asked
from interfaces.http.sampling_fields import SamplingFields, generation_request

MAX_CHOICES = 128
"""Completions one HTTP request may ask for, over all its prompts."""


class StreamOptions(Struct):
    """`include_usage`: end the stream with a chunk that carries the token counts."""

    include_usage: bool | None = None


class CompletionFields(SamplingFields, kw_only=True):
    """Null and absent mean the same for every field."""

    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    stop: str | list[str] | None = None
    return_token_ids: bool | None = None
    store: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def completion_request(
    fields: CompletionFields,
    asked: Asked,
    id: RequestId,
    prompt: Prompt,
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None,
) -> GenerationRequest:
    """Raises InvalidRequest."""
    return generation_request(
        fields,
        asked,
        id,
        prompt,
        max_tokens=max_tokens,
        stop=(fields.stop,) if isinstance(fields.stop, str) else fields.stop or (),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        num_choices=fields.n or 1,
        persist=fields.store is not False,
    )


__all__ = ("MAX_CHOICES", "CompletionFields", "StreamOptions", "completion_request")
