"""POST /v1/completions: one or many prompts, each text or token ids.

The answer is one body, or a stream of chunks of the same shape, and plain text: reasoning and tool calls stand where
the model wrote them, without marks (`plain_text`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from domain.errors import InvalidRequest, require
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.request.request import FinishReason, GenerationRequest, TextPrompt, TokenPrompt, choice_id
from domain.request.stream import ContentDelta, Finished
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Operation, Started
from interfaces.http.fields.parameters import mapped, refuse_unsupported, refused, supported
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.openai.logprobs import (
    CompletionLogprobs,
    PromptLogprobsBody,
    ScoredPrompt,
    Scores,
    completion_logprobs,
)
from interfaces.http.openai.shared import (
    MAX_CHOICES,
    ChunkFraming,
    CompletionFields,
    UsageBody,
    completion_request,
    plain_text,
    usage_body,
)

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for text completions."""

PlainPrompt: TypeAlias = TextPrompt | TokenPrompt
WirePrompt: TypeAlias = str | Sequence[str | int | Sequence[int]]


_NO_MESSAGES = "send messages to `/v1/chat/completions`"


class CompletionRequest(CompletionFields, kw_only=True):
    """Unknown fields are ignored unless they would change the answer; those are refused by name."""

    prompt: Annotated[WirePrompt, supported("a string, token ids, or a list of either")]
    echo: Annotated[bool | None, supported("the prompt before its completion; its `logprobs` too")] = None
    best_of: Annotated[int | None, mapped("only where it equals `n`")] = None
    logprobs: Annotated[int | None, supported("the number of alternatives a token")] = None
    add_generation_prompt: Annotated[Any, refused(_NO_MESSAGES, True)] = None
    add_special_tokens: Annotated[Any, refused("send token ids instead of text", True)] = None
    continue_final_message: Annotated[Any, refused(_NO_MESSAGES, False)] = None
    reasoning_budget: Annotated[Any, refused(_NO_MESSAGES)] = None
    suffix: Annotated[Any, refused("infilling is not implemented", "")] = None
    thinking_budget: Annotated[Any, refused(_NO_MESSAGES)] = None
    thinking_token_budget: Annotated[Any, refused(_NO_MESSAGES)] = None

    def __post_init__(self) -> None:
        """Keeps ids as rows, which are small: a body stays in memory until its request is answered."""
        if self.prompt and not isinstance(self.prompt, str):
            row = _rowed(self.prompt)
            self.prompt = row or [item if isinstance(item, str | int) else _rowed(item) or item for item in self.prompt]

    def wire_names(self) -> dict[str, str]:
        names = {"top_logprobs": "logprobs", **self.grammar_names}
        return names if self.prompt_logprobs is not None else {**names, "prompt_logprobs": "logprobs"}

    def requests(self, context: RequestContext) -> list[GenerationRequest]:
        refuse_unsupported(self)
        prompts = plain_prompts(self)
        require(self.best_of in (None, self.n or 1), "best_of", "is only supported when it equals n")
        first = completion_request(
            self,
            context,
            "cmpl",
            prompts[0],
            max_tokens=DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            num_logprobs=self.logprobs,
            num_prompt_logprobs=num_prompt_logprobs(self),
        )
        return [
            replace(first, id=choice_id(first.id, number * (self.n or 1)), prompt=prompt)
            for number, prompt in enumerate(prompts)
        ]


def plain_prompts(body: CompletionRequest) -> list[PlainPrompt]:
    """Every prompt of the body, in order. Raises InvalidRequest."""
    prompt = body.prompt
    if not isinstance(prompt, str | IdRow) and prompt and all(isinstance(item, int) for item in prompt):
        raise _no_token_id("prompt")
    num_prompts = 1 if isinstance(prompt, str | IdRow) else len(prompt)
    require(num_prompts > 0, "prompt", "must not be empty")
    if num_prompts * (body.n or 1) > MAX_CHOICES:
        raise InvalidRequest(f"prompts times n exceed {MAX_CHOICES}", param="n" if num_prompts == 1 else "prompt")
    return _prompts(prompt)


def num_prompt_logprobs(body: CompletionRequest) -> int | None:
    """The number of alternatives to report a prompt token; None for no log probabilities of the prompt."""
    numbers = (body.prompt_logprobs, body.logprobs if body.echo else None)
    return max((number for number in numbers if number is not None), default=None)


def _rowed(items: Sequence[object]) -> IdRow | None:
    """Returns a list of ids as a row; None for any other value."""
    try:
        return IdRow(items)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _prompts(prompt: WirePrompt) -> list[PlainPrompt]:
    if isinstance(prompt, str):
        return [TextPrompt(prompt)]
    if isinstance(prompt, IdRow):
        return [TokenPrompt(prompt)]
    return [_prompt(item, f"prompt[{index}]") for index, item in enumerate(prompt)]


def _prompt(item: str | int | Sequence[int], field: str) -> PlainPrompt:
    if isinstance(item, str):
        return TextPrompt(item)
    if isinstance(item, int):
        raise InvalidRequest("prompt mixes token ids with other prompts", param=field)
    if not item or isinstance(item, IdRow):
        return TokenPrompt(IdRow(item))
    raise _no_token_id(field)


def _no_token_id(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field} holds a number that is no token id (0 to {MAX_TOKEN_ID})", param=field)


class CompletionChoice(Struct):
    """A choice, or a piece of one. `prompt_token_ids` and log probabilities of the prompt are in a streamed choice's
    first chunks."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobsBody | UnsetType = UNSET


class Completion(Struct, tag_field="object", tag="text_completion"):
    """A whole answer or a chunk."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET


def completion(body: CompletionRequest, started: Started, collected: Sequence[Collected]) -> Completion:
    choices = [_opening(body, started, index) for index in range(started.num_choices)]
    for number, first in enumerate(collected[:: started.choices_per_prompt]):
        _add_scores(body, choices[_of_prompt(started, number)], _scored_prompt(started, number), first.scores)
    for choice, found in zip(choices, collected, strict=True):
        num_chars = len(choice.text)
        choice.text += "".join(map(plain_text, found.deltas))
        choice.finish_reason = _finish_reason(found.finished)
        if body.logprobs is not None:
            own = completion_logprobs(found.deltas, started.tokenizer, num_chars)
            choice.logprobs = own if choice.logprobs is None else choice.logprobs.followed_by(own)
        if body.return_token_ids:
            choice.token_ids = found.token_ids
    usage = usage_body([found.finished.usage for found in collected], started.choices_per_prompt)
    return _completion(started, choices, usage)


class CompletionFraming(ChunkFraming[CompletionChoice]):
    """A stream of the echoed prompt if requested, text, and a finish chunk a choice."""

    def __init__(self, body: CompletionRequest, started: Started) -> None:
        super().__init__(body, started)
        self._body = body
        self._num_chars = [0] * started.num_choices
        self._prompts = [_scored_prompt(started, number) for number in range(len(started.prompts))]

    def begin(self) -> bytes:
        if not self._body.echo and not self._body.return_token_ids:
            return b""
        openings = [_opening(self._body, self._started, index) for index in range(self._started.num_choices)]
        self._num_chars = [len(opening.text) for opening in openings]
        return b"".join(self._encoded([opening]) for opening in openings)

    def _scored(self, index: int, scores: Scores) -> bytes:
        number = index // self._started.choices_per_prompt
        choices = [CompletionChoice(one, "") for one in range(self._started.num_choices)]
        choices = choices[_of_prompt(self._started, number)]
        _add_scores(self._body, choices, self._prompts[number], scores)
        return b"".join(self._encoded([choice]) for choice in choices)

    def _content(self, index: int, delta: ContentDelta) -> CompletionChoice | None:
        choice = CompletionChoice(index, plain_text(delta))
        if self._body.logprobs is not None and delta.logprobs:
            choice.logprobs = completion_logprobs([delta], self._started.tokenizer, self._num_chars[index])
        if self._body.return_token_ids and delta.token_ids:
            choice.token_ids = list(delta.token_ids)
        self._num_chars[index] += len(choice.text)
        is_silent = not choice.text and choice.logprobs is None and choice.token_ids is UNSET
        return None if is_silent else choice

    def _last(self, index: int, finished: Finished) -> CompletionChoice:
        return CompletionChoice(index, "", finish_reason=_finish_reason(finished))

    def _chunk(self, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None) -> Completion:
        return _completion(self._started, choices, usage)


def _completion(started: Started, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None) -> Completion:
    return Completion(started.id, started.created_s, started.model, started.fingerprint, choices, usage)


def _opening(body: CompletionRequest, started: Started, index: int) -> CompletionChoice:
    """A choice before any of its text."""
    number = index // started.choices_per_prompt
    choice = CompletionChoice(index, _text(started, number) if body.echo else "")
    if body.return_token_ids:
        choice.prompt_token_ids = list(started.prompts[number])
    return choice


def _scored_prompt(started: Started, number: int) -> ScoredPrompt:
    return ScoredPrompt(started.prompts[number], started.tokenizer)


def _of_prompt(started: Started, number: int) -> slice:
    """The choices of a prompt."""
    return slice(number * started.choices_per_prompt, (number + 1) * started.choices_per_prompt)


def _add_scores(
    body: CompletionRequest, choices: Sequence[CompletionChoice], prompt: ScoredPrompt, scores: Scores
) -> None:
    """Adds the log probabilities of a prompt to all its choices, if they were requested."""
    echoed = prompt.echoed(scores, body.logprobs) if body.echo and body.logprobs is not None else None
    listed = prompt.listed(scores, body.prompt_logprobs) if body.prompt_logprobs is not None else UNSET
    for choice in choices:
        choice.logprobs, choice.prompt_logprobs = echoed, listed


def _text(started: Started, number: int) -> str:
    prompt = started.requests[number].prompt
    return prompt.text if isinstance(prompt, TextPrompt) else started.tokenizer.decode(started.prompts[number])


def _finish_reason(finished: Finished) -> str:
    return "length" if finished.reason is FinishReason.LENGTH else "stop"


COMPLETIONS = Operation(
    path="/v1/completions",
    operation_id="createCompletion",
    body_type=CompletionRequest,
    answer_type=Completion,
    answer=completion,
    framing=CompletionFraming,
    discriminator="prompt",
    noun="a text completion",
)
