"""POST /v1/chat/completions: the operation and its answer, one body or a stream of chunks."""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from domain.priority import Priority
from domain.request.request import FinishReason
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, TextDelta, ToolCallDelta
from interfaces.http.answering.collected import Collected, visible_parts
from interfaces.http.answering.dialect import Operation, Started
from interfaces.http.fields.custom_tools import CustomInput, custom_text
from interfaces.http.fields.sampling_fields import openai_tier
from interfaces.http.openai.chat_request import ChatCompletionRequest, custom_names
from interfaces.http.openai.logprobs import ChatLogprobs, PromptLogprobsBody, ScoredPrompt, Scores, chat_logprobs
from interfaces.http.openai.shared import ChunkFraming, UsageBody, plain_text, usage_body

_FINISH_REASONS = {FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls", FinishReason.STOP: "stop"}


class AnsweredFunction(Struct):
    name: str
    arguments: str


class AnsweredToolCall(Struct, tag_field="type", tag="function"):
    id: str
    function: AnsweredFunction


class AnsweredCustom(Struct):
    name: str
    input: str


class AnsweredCustomCall(Struct, tag_field="type", tag="custom"):
    id: str
    custom: AnsweredCustom


class AnswerMessage(Struct, tag_field="role", tag="assistant"):
    """The message of an answer. `content` is null where there is none besides tool calls."""

    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnsweredToolCall | AnsweredCustomCall] | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class CallProblemBody(Struct):
    """A problem of a tool call. `choice`: its index. `kind`: `unknown_tool`, `malformed_arguments` or
    `schema_mismatch`."""

    choice: int
    call_id: str
    kind: str
    detail: str


class RepetitionBody(Struct):
    """The repetition that ended an answer: `count` copies of a pattern of `pattern_size` tokens. `choice`: its
    index."""

    choice: int
    pattern_size: int
    count: int


class CairnBody(Struct):
    """Fields of Cairn's own extensions OpenAI's; left out where they are empty."""

    tool_call_problems: list[CallProblemBody] | UnsetType = UNSET
    repetitions: list[RepetitionBody] | UnsetType = UNSET


class ChatCompletion(Struct, tag_field="object", tag="chat.completion"):
    """A whole answer. `prompt_token_ids` and `token_ids` are there if `return_token_ids` is true, `prompt_logprobs`
    with the request field of this name. `service_tier`: where one was named, or the key's is another."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] | UnsetType = UNSET
    x_cairn: CairnBody | UnsetType = UNSET
    prompt_logprobs: PromptLogprobsBody | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET


class FunctionPiece(Struct):
    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomPiece(Struct):
    name: str | UnsetType = UNSET
    input: str = ""


class ToolCallPiece(Struct):
    """Only the first piece of a call has `id`, `type` and the tool's name."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionPiece | UnsetType = UNSET
    custom: CustomPiece | UnsetType = UNSET


class Delta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET


class ChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, tag_field="object", tag="chat.completion.chunk"):
    id: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    x_cairn: CairnBody | UnsetType = UNSET
    prompt_logprobs: PromptLogprobsBody | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET


def chat_completion(body: ChatCompletionRequest, started: Started, collected: Sequence[Collected]) -> ChatCompletion:
    return ChatCompletion(
        started.id,
        started.created_s,
        started.model,
        started.fingerprint,
        [_choice(body, started, index, choice) for index, choice in enumerate(collected)],
        usage_body([choice.finished.usage for choice in collected], started.choices_per_prompt),
        list(started.prompts[0]) if body.return_token_ids else UNSET,
        _extensions([(index, choice.finished) for index, choice in enumerate(collected)]),
        _prompt_logprobs(body, started, collected[0].scores),
        _service_tier(body, started),
    )


def _service_tier(body: ChatCompletionRequest, started: Started) -> str | UnsetType:
    """The tier, where the request names one or got another than the default."""
    is_plain = body.service_tier is None and started.priority is Priority.INTERACTIVE
    return UNSET if is_plain else openai_tier(started.priority)


def _extensions(finished: Sequence[tuple[int, Finished]]) -> CairnBody | UnsetType:
    problems = [
        CallProblemBody(index, problem.call_id, problem.kind.value, problem.detail)
        for index, choice in finished
        for problem in choice.call_problems
    ]
    repetitions = [
        RepetitionBody(index, choice.repetition.pattern_size, choice.repetition.count)
        for index, choice in finished
        if choice.repetition is not None
    ]
    return CairnBody(problems or UNSET, repetitions or UNSET) if problems or repetitions else UNSET


def _prompt_logprobs(body: ChatCompletionRequest, started: Started, scores: Scores) -> PromptLogprobsBody | UnsetType:
    if body.prompt_logprobs is None:
        return UNSET
    return ScoredPrompt(started.prompts[0], started.tokenizer).listed(scores, body.prompt_logprobs)


def _choice(body: ChatCompletionRequest, started: Started, index: int, choice: Collected) -> ChatChoice:
    logprobs = [entry for delta in choice.deltas for entry in delta.logprobs]
    return ChatChoice(
        index,
        _message(body, choice),
        _FINISH_REASONS[choice.finished.reason],
        chat_logprobs(logprobs, started.tokenizer) if body.logprobs else None,
        choice.token_ids if body.return_token_ids else UNSET,
    )


def _message(body: ChatCompletionRequest, choice: Collected) -> AnswerMessage:
    custom = custom_names(body)
    calls = [
        AnsweredCustomCall(part.id, AnsweredCustom(part.name, custom_text(part.arguments)))
        if part.name in custom
        else AnsweredToolCall(part.id, AnsweredFunction(part.name, part.arguments))
        for part in visible_parts(choice)
        if isinstance(part, ToolCallDelta)
    ]
    content = choice.text or (None if calls else "")
    reasoning = "" if body.include_reasoning is False else choice.reasoning
    return AnswerMessage(content, reasoning_content=reasoning or UNSET, tool_calls=calls or UNSET)


class ChatFraming(ChunkFraming[ChunkChoice]):
    """A role chunk for each choice, its content, a finish chunk for each, with what is wrong with its calls."""

    def __init__(self, body: ChatCompletionRequest, started: Started) -> None:
        super().__init__(body, started)
        self._body = body
        self._prompt_ids = list(started.prompts[0]) if body.return_token_ids else UNSET
        self._tier = _service_tier(body, started)
        self._custom = custom_names(body)
        self._inputs: dict[tuple[int, int], CustomInput] = {}
        """The readers of custom calls, by index of choice and of call."""
        self._extensions_once: CairnBody | UnsetType = UNSET
        self._prompt_logprobs: PromptLogprobsBody | UnsetType = UNSET

    def begin(self) -> bytes:
        roles = [ChunkChoice(index, Delta("assistant", "")) for index in range(self._started.num_choices)]
        opening = b"".join(self._encoded([role]) for role in roles)
        self._prompt_ids = UNSET
        return opening

    def _scored(self, index: int, scores: Scores) -> bytes:
        self._prompt_logprobs = _prompt_logprobs(self._body, self._started, scores)
        chunk = self._encoded([])
        self._prompt_logprobs = UNSET
        return chunk

    def _content(self, index: int, delta: ContentDelta) -> ChunkChoice | None:
        choice = ChunkChoice(index, self._delta(index, delta))
        if self._body.logprobs and delta.logprobs:
            choice.logprobs = chat_logprobs(delta.logprobs, self._started.tokenizer)
        if self._body.return_token_ids and delta.token_ids:
            choice.token_ids = list(delta.token_ids)
        is_empty = not plain_text(delta) or choice.delta == Delta()
        is_silent = is_empty and choice.logprobs is None and choice.token_ids is UNSET
        return None if is_silent else choice

    def _last(self, index: int, finished: Finished) -> ChunkChoice:
        self._extensions_once = _extensions([(index, finished)])
        rests = [(call, text.finish()) for (of, call), text in self._inputs.items() if of == index]
        pieces = [ToolCallPiece(call, custom=CustomPiece(input=rest)) for call, rest in rests if rest]
        return ChunkChoice(index, Delta(tool_calls=pieces or UNSET), finish_reason=_FINISH_REASONS[finished.reason])

    def _chunk(self, choices: list[ChunkChoice], usage: UsageBody | UnsetType | None) -> ChatChunk:
        started = self._started
        extensions, self._extensions_once = self._extensions_once, UNSET
        more = (self._prompt_ids, extensions, self._prompt_logprobs, self._tier)
        head = (started.id, started.created_s, started.model, started.fingerprint)
        return ChatChunk(*head, choices, usage, *more)

    def _delta(self, index: int, delta: ContentDelta) -> Delta:
        match delta:
            case TextDelta(text=text):
                return Delta(content=text)
            case ReasoningDelta(text=text):
                return Delta() if self._body.include_reasoning is False else Delta(reasoning_content=text)
            case ToolCallDelta():
                return self._call(index, delta)

    def _call(self, index: int, delta: ToolCallDelta) -> Delta:
        """A piece of a call; empty for one that shows nothing of a custom tool's text yet."""
        at, is_first = (index, delta.index), bool(delta.id)
        if is_first and delta.name in self._custom:
            self._inputs[at] = CustomInput()
        name, type = (delta.name, "custom" if at in self._inputs else "function") if is_first else (UNSET, UNSET)
        piece = ToolCallPiece(delta.index, delta.id or UNSET, type)
        if (reader := self._inputs.get(at)) is None:
            piece.function = FunctionPiece(name, delta.arguments)
            return Delta(tool_calls=[piece])
        piece.custom = CustomPiece(name, reader.feed(delta.arguments))
        return Delta(tool_calls=[piece]) if is_first or piece.custom.input else Delta()


CHAT_COMPLETIONS = Operation(
    path="/v1/chat/completions",
    operation_id="createChatCompletion",
    body_type=ChatCompletionRequest,
    answer_type=ChatCompletion,
    answer=chat_completion,
    framing=ChatFraming,
    discriminator="messages",
    noun="a chat",
)
