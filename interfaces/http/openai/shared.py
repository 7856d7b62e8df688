"""The parts that chat and text completions share: request fields, token counts, and streams of chunks."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.request.request import GenerationRequest, Prompt, Usage
from domain.request.stream import ContentDelta, Finished, PromptLogprobs, StreamItem, TokenLogprob, ToolCallDelta
from interfaces.http.answering.collected import PredictionTokens, prediction_counts
from interfaces.http.answering.dialect import SSE_DONE, Framing, Started, sse_comment, sse_event
from interfaces.http.errors import openai_error, problem_of
from interfaces.http.fields.grammar_fields import GrammarFields
from interfaces.http.fields.parameters import ignored, mapped, refused, supported
from interfaces.http.fields.sampling_fields import new_request, tier_priority
from interfaces.http.incoming.request_context import RequestContext

_NO_SAMPLER = "this sampler is not implemented"
_CACHE = "the model's cache is kept as it is computed"

MAX_CHOICES = 128
"""Bound on the completions of one HTTP request, over all its prompts."""


class StreamOptions(Struct):
    """The options of a stream. `include_usage`: end the stream with a chunk that carries the token counts.
    `continuous_usage_stats`: with it, the other chunks carry those so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CompletionFields(GrammarFields, kw_only=True):
    """The fields of chat and text completions. Null and absent mean the same for every field."""

    stream_options: Annotated[
        StreamOptions | None,
        mapped("`include_usage`: a last chunk with the token counts, with `continuous_usage_stats` every chunk"),
    ] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None, supported(f"up to {MAX_CHOICES}, over all prompts")
    ] = None
    max_tokens: Annotated[
        int | None,
        supported(
            "an upper bound; with -1 or less room, the context is the bound, as it is of a chat by default; of a text"
            " completion it is 16 tokens"
        ),
    ] = None
    prompt_logprobs: Annotated[int | None, supported("of the prompt's tokens; the alternatives to each")] = None
    stop: Annotated[str | list[str] | None, supported("one string or up to 16")] = None
    service_tier: Annotated[
        str | None, mapped("`flex`: others go first; the answer reports the tier it was served in, `flex` or `default`")
    ] = None
    return_token_ids: Annotated[
        bool | None, supported("`token_ids` in every choice, `prompt_token_ids` beside or in them")
    ] = None
    store: Annotated[
        bool | None, supported("false keeps what is computed for this request out of the prefix cache's store")
    ] = None
    chat_template: Annotated[Any, refused("the model's own template is used", "")] = None
    documents: Annotated[Any, refused("put them into the prompt", [])] = None
    dry_multiplier: Annotated[Any, refused(_NO_SAMPLER, 0)] = None
    grammar_text: Annotated[Any, refused("use `structured_outputs.grammar`", "")] = field(default=None, name="grammar")
    include_stop_str_in_output: Annotated[Any, refused("stop strings are never in the answer", False)] = None
    logits_processors: Annotated[Any, refused("no code of clients is run", [])] = None
    mirostat: Annotated[Any, refused(_NO_SAMPLER, 0)] = None
    prompt_embeds: Annotated[Any, refused("prompts are text or token ids")] = None
    repeat_penalty: Annotated[Any, refused("use `repetition_penalty`", 1)] = None
    skip_special_tokens: Annotated[Any, refused("special tokens are never text", True)] = None
    tfs_z: Annotated[Any, refused(_NO_SAMPLER, 1)] = None
    truncate_prompt_tokens: Annotated[Any, refused("a prompt that is too long is an error")] = None
    typical_p: Annotated[Any, refused(_NO_SAMPLER, 1)] = None
    use_beam_search: Annotated[Any, refused(_NO_SAMPLER, False)] = None
    xtc_probability: Annotated[Any, refused(_NO_SAMPLER, 0)] = None
    adapters: Annotated[Any, refused("serve the adapted model by a name of its own", "")] = None
    kv_bits: Annotated[Any, ignored(_CACHE)] = None
    kv_group_size: Annotated[Any, ignored(_CACHE)] = None
    kv_quant_scheme: Annotated[Any, ignored(_CACHE)] = None
    quantized_kv_start: Annotated[Any, ignored(_CACHE)] = None
    turboquant_kv_bits: Annotated[Any, ignored(_CACHE)] = None
    max_kv_size: Annotated[Any, ignored("the context is the model's, or `model.context_length`")] = None
    prefill_step_size: Annotated[Any, ignored("the scheduler chooses it")] = None
    draft_model: Annotated[Any, ignored("`model.draft` of the settings names it")] = None
    num_draft_tokens: Annotated[Any, ignored("the drafter chooses it")] = None
    repetition_context_size: Annotated[Any, ignored("`repetition_penalty` looks at everything")] = None
    xtc_threshold: Annotated[Any, ignored("it belongs to `xtc_probability`")] = None
    user: Annotated[Any, ignored("it is passed to no one")] = None
    timings_per_token: Annotated[Any, ignored("`/admin` has the times of a request")] = None
    return_progress: Annotated[Any, ignored("comments of a stream have the progress")] = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def grammar_names(self) -> dict[str, str]:
        """A refused `grammar` is named as it was sent."""
        return super().grammar_names if self.grammar_text in (None, "") else {}


def completion_request(
    body: CompletionFields,
    context: RequestContext,
    prefix: str,
    prompt: Prompt,
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None,
    **fields: Any,
) -> GenerationRequest:
    """Returns the request of a body: see `new_request`. Raises InvalidRequest."""
    return new_request(
        body,
        context,
        prefix,
        prompt,
        sampling=body.sampling(num_logprobs),
        stop=body.stop_rules(max_tokens, (body.stop,) if isinstance(body.stop, str) else body.stop or ()),
        num_prompt_logprobs=num_prompt_logprobs,
        num_choices=body.n or 1,
        persist=body.store is not False,
        grammar=body.grammar,
        priority=tier_priority(body.service_tier),
        **fields,
    )


class PromptTokensDetails(Struct):
    """Parts of a prompt. `cached_tokens`: those that were reused and not computed. `image_tokens`: those of images;
    left out without any."""

    cached_tokens: int
    image_tokens: int | UnsetType = UNSET


class UsageBody(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: PredictionTokens


def usage_body(usages: Sequence[Usage], choices_per_prompt: int) -> UsageBody:
    """The token counts of a request. `usages` in order of choice index."""
    of_prompts = usages[::choices_per_prompt]
    prompt_tokens = sum(usage.prompt_tokens for usage in of_prompts)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    num_image_tokens = sum(usage.image_tokens for usage in of_prompts)
    cached = PromptTokensDetails(sum(usage.reused_tokens for usage in of_prompts), num_image_tokens or UNSET)
    drafted = PredictionTokens(**prediction_counts(*usages, has_zeros=True))
    return UsageBody(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, cached, drafted)


ChoiceT = TypeVar("ChoiceT")


class ChunkFraming(Framing, Generic[ChoiceT]):
    """A stream of chunks that ends with `[DONE]`. `usage` is null in every chunk but the last when it was requested,
    unless that asked for it in all; else absent."""

    def __init__(self, fields: CompletionFields, started: Started) -> None:
        self._includes_usage = fields.includes_usage
        self._is_counting = fields.stream_options is not None and bool(fields.stream_options.continuous_usage_stats)
        self._started = started
        self._encoder = msgspec.json.Encoder()
        self._usages = [Usage(len(prompt), 0) for prompt in started.prompts for _ in range(started.choices_per_prompt)]

    def feed(self, index: int, item: StreamItem) -> bytes:
        if isinstance(item, ContentDelta) and self._is_counting:
            so_far = self._usages[index]
            self._usages[index] = replace(so_far, completion_tokens=so_far.completion_tokens + len(item.token_ids))
        if isinstance(item, Finished):
            self._usages[index] = item.usage
            return self._encoded([self._last(index, item)])
        if isinstance(item, PromptLogprobs):
            return self._scored(index, item.scores)
        choice = self._content(index, item) if isinstance(item, ContentDelta) else None
        return self._encoded([choice]) if choice is not None else b""

    def keep_alive(self, progress: Progress) -> bytes:
        return sse_comment(progress.text)

    def end(self) -> bytes:
        if not self._includes_usage:
            return SSE_DONE
        return self._encoded([], has_usage=True) + SSE_DONE

    def fail(self, error: DomainError) -> bytes:
        return sse_event(self._encoder.encode(openai_error(problem_of(error)))) + SSE_DONE

    def _encoded(self, choices: Sequence[ChoiceT], *, has_usage: bool = False) -> bytes:
        usage: UsageBody | UnsetType | None = None if self._includes_usage else UNSET
        if self._includes_usage and (has_usage or self._is_counting):
            usage = usage_body(self._usages, self._started.choices_per_prompt)
        return sse_event(self._encoder.encode(self._chunk(list(choices), usage)))

    @abstractmethod
    def _chunk(self, choices: list[ChoiceT], usage: UsageBody | UnsetType | None) -> Struct: ...

    @abstractmethod
    def _scored(self, index: int, scores: Sequence[TokenLogprob | None]) -> bytes:
        """Log probabilities of the prompt whose first choice is `index`."""
        ...

    @abstractmethod
    def _content(self, index: int, delta: ContentDelta) -> ChoiceT | None:
        """None for a delta that shows nothing yet."""
        ...

    @abstractmethod
    def _last(self, index: int, finished: Finished) -> ChoiceT: ...


def plain_text(delta: ContentDelta) -> str:
    """The text of a delta without the marks of its kind: reasoning as it is, a tool call as name and arguments."""
    return delta.name + delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
