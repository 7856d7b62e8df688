"""The answer to a text completion: one body, or a stream of chunks of the same shape.

Here everything is text: reasoning and tool calls stand where the model wrote them, without marks (`plain_text`).
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from domain.request.request import FinishReason, TextPrompt
from domain.request.stream import ContentDelta, Finished
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Started
from interfaces.http.openai.chunk_framing import ChunkFraming, plain_text
from interfaces.http.openai.completion_request import CompletionRequest
from interfaces.http.openai.logprobs import CompletionLogprobs, completion_logprobs
from interfaces.http.openai.prompt_logprobs import PromptLogprobsBody, ScoredPrompt, Scores
from interfaces.http.openai.usage import UsageBody, usage_body


class CompletionChoice(Struct):
    """`prompt_token_ids` and what is known of the prompt come with a streamed choice's first chunks."""

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
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET


def completion(body: CompletionRequest, started: Started, collected: Sequence[Collected]) -> Completion:
    choices = [_opening(body, started, index) for index in range(started.num_choices)]
    for number, first in enumerate(collected[:: started.choices_per_prompt]):
        _add_scores(body, choices[_of_prompt(started, number)], _prompt(started, number), first.scores)
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
    return Completion(started.id, started.created_s, started.model, choices, usage)


class CompletionFraming(ChunkFraming[CompletionChoice]):
    """The echoed prompt if asked for, text, a finish chunk a choice."""

    def __init__(self, body: CompletionRequest, started: Started) -> None:
        super().__init__(body, started)
        self._body = body
        self._num_chars = [0] * started.num_choices
        self._prompts = [_prompt(started, number) for number in range(len(started.prompts))]

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
        return Completion(self._started.id, self._started.created_s, self._started.model, choices, usage)


def _opening(body: CompletionRequest, started: Started, index: int) -> CompletionChoice:
    """A choice before any of its text."""
    number = index // started.choices_per_prompt
    choice = CompletionChoice(index, _text(started, number) if body.echo else "")
    if body.return_token_ids:
        choice.prompt_token_ids = list(started.prompts[number])
    return choice


def _prompt(started: Started, number: int) -> ScoredPrompt:
    return ScoredPrompt(started.prompts[number], started.tokenizer)


def _of_prompt(started: Started, number: int) -> slice:
    """The choices of a prompt."""
    return slice(number * started.choices_per_prompt, (number + 1) * started.choices_per_prompt)


def _add_scores(
    body: CompletionRequest, choices: Sequence[CompletionChoice], prompt: ScoredPrompt, scores: Scores
) -> None:
    """To all choices of a prompt, if they were asked for."""
    echoed = prompt.echoed(scores, body.logprobs) if body.echo and body.logprobs is not None else None
    listed = prompt.listed(scores, body.prompt_logprobs) if body.prompt_logprobs is not None else UNSET
    for choice in choices:
        choice.logprobs, choice.prompt_logprobs = echoed, listed


def _text(started: Started, number: int) -> str:
    prompt = started.requests[number].prompt
    return prompt.text if isinstance(prompt, TextPrompt) else started.tokenizer.decode(started.prompts[number])


def _finish_reason(finished: Finished) -> str:
    return "length" if finished.reason is FinishReason.LENGTH else "stop"
