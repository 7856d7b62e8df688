"""The request fields that chat and text completions share."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from domain.ids import RequestId
from domain.request.request import GenerationRequest, Prompt
from interfaces.http.fields.grammar_fields import GRAMMAR_FIELDS, FieldGrammar, grammar_of
from interfaces.http.fields.parameters import mapped, supported
from interfaces.http.fields.sampling_fields import SamplingFields, generation_request, tier_priority
from interfaces.http.incoming.request_context import RequestContext

MAX_CHOICES = 128
"""Completions one HTTP request may ask for, over all its prompts."""


class StreamOptions(Struct):
    """`include_usage`: end the stream with a chunk that carries the token counts."""

    include_usage: bool | None = None


class CompletionFields(SamplingFields, kw_only=True):
    """Null and absent mean the same for every field."""

    stream_options: Annotated[StreamOptions | None, mapped("`include_usage`: a last chunk with the token counts")] = (
        None
    )
    n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None, supported(f"up to {MAX_CHOICES}, over all prompts")
    ] = None
    max_tokens: Annotated[
        int | None, supported("by default a chat runs to the end of the context, a text completion for 16 tokens")
    ] = None
    prompt_logprobs: Annotated[int | None, supported("of the prompt's tokens, with so many alternatives")] = None
    stop: Annotated[str | list[str] | None, supported("one string or up to 16")] = None
    service_tier: Annotated[
        str | None, mapped("`flex`: others go first; the answer tells the tier it was served in, `flex` or `default`")
    ] = None
    return_token_ids: Annotated[
        bool | None, supported("`token_ids` in every choice, `prompt_token_ids` beside or in them")
    ] = None
    store: Annotated[
        bool | None, supported("false keeps what is computed for this request out of the prefix cache's store")
    ] = None
    response_format: Annotated[
        dict[str, Any] | None, supported("`text`, `json_object`, `json_schema`, held to whether `strict` or not")
    ] = None
    structured_outputs: Annotated[
        dict[str, Any] | None, supported("one of `json`, `json_object`, `regex`, `choice`, `grammar` (Lark)")
    ] = None
    guided_json: Annotated[
        str | bool | dict[str, Any] | None, supported("as `structured_outputs.json`; a schema, or its JSON text")
    ] = None
    guided_regex: Annotated[str | None, supported("as `structured_outputs.regex`")] = None
    guided_choice: Annotated[list[str] | None, supported("as `structured_outputs.choice`")] = None
    guided_grammar: Annotated[str | None, supported("as `structured_outputs.grammar`")] = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def grammar(self) -> FieldGrammar | None:
        """Raises InvalidRequest."""
        return grammar_of({name: getattr(self, name) for name in self._grammar_fields()})

    @property
    def grammar_names(self) -> dict[str, str]:
        """The client's name for the domain's `grammar`, for `renamed`; without a field for one, tools are it."""
        return {"grammar": next(iter(self._grammar_fields()), "tools")}

    def _grammar_fields(self) -> list[str]:
        """Those that say something: empty ones are how some clients leave them out."""
        return [name for name in GRAMMAR_FIELDS if getattr(self, name) not in (None, "", [])]


def completion_request(
    fields: CompletionFields,
    context: RequestContext,
    id: RequestId,
    prompt: Prompt,
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None,
) -> GenerationRequest:
    """Raises InvalidRequest."""
    found = fields.grammar
    return generation_request(
        fields,
        context,
        id,
        prompt,
        max_tokens=max_tokens,
        stop=(fields.stop,) if isinstance(fields.stop, str) else fields.stop or (),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        num_choices=fields.n or 1,
        persist=fields.store is not False,
        grammar=found.grammar if found is not None else None,
        priority=tier_priority(fields.service_tier),
    )
