"""The body of POST /v1/chat/completions and its conversion into a prompt. Media other than images and files are refused
by their position."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias, cast

from msgspec import Struct

from domain.errors import InvalidRequest, require
from domain.request.chat import ChatMessage, Json, Media, Role, TextGrammar, ToolCall, ToolSpec, message_of
from domain.request.reasoning_budget import NO_REASONING, ReasoningLimit
from domain.request.request import THINKING_SWITCHES, ChatPrompt, GenerationRequest
from interfaces.http.fields.custom_tools import custom_arguments, custom_spec
from interfaces.http.fields.media_fields import file_of, image_of
from interfaces.http.fields.parameters import ignored, mapped, refuse_unsupported, refused, supported
from interfaces.http.fields.sampling_fields import openai_tool_choice
from interfaces.http.incoming.json_body import check_arguments
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.openai.shared import CompletionFields, completion_request


class TextPart(Struct, tag_field="type", tag="text"):
    """Its text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """Its text."""

    refusal: str


class ImageUrl(Struct):
    url: str
    detail: str | None = None


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """A data URL, or a URL where the server allows its host; see [vision](../vision.md)."""

    image_url: str | ImageUrl


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """Refused by name."""

    input_audio: Any = None


class VideoPart(Struct, tag_field="type", tag="video_url"):
    """Refused by name."""

    video_url: Any = None


class FileData(Struct):
    file_data: str | None = None
    filename: str | None = None
    file_id: Any = None


class FilePart(Struct, tag_field="type", tag="file"):
    """A PDF file or text in UTF-8 as `file_data`, a data URL: the model reads its text. A `file_id` is refused."""

    file: FileData


Part: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart | VideoPart | FilePart
Content: TypeAlias = str | list[Part]


class _Typed(Struct):
    """An object whose content is in the field that has the name of its type."""

    type: Literal["function", "custom"] = "function"

    def __post_init__(self) -> None:
        if getattr(self, self.type) is None:
            raise ValueError(f"Object missing required field `{self.type}`")  # as msgspec says it


class FunctionCall(Struct):
    name: str
    arguments: str = ""


class CustomCall(Struct):
    name: str
    input: str = ""


class AssistantToolCall(_Typed):
    function: FunctionCall | None = None
    custom: CustomCall | None = None
    id: str = ""

    def called(self) -> ToolCall:
        match self:
            case AssistantToolCall(type="custom", custom=CustomCall(name=name, input=text)):
                return ToolCall(self.id, name, custom_arguments(text))
            case AssistantToolCall(function=FunctionCall(name=name, arguments=arguments)):
                return ToolCall(self.id, name, arguments)
            case _:
                raise AssertionError(self)


class Message(Struct):
    """A message. `tool_call_id`: of the call that a tool answers. The other fields after `name` are of an earlier
    answer: its reasoning has either of the names that servers use for it, and with `prefix` or `partial`, as the last
    message, it is the beginning of the answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[AssistantToolCall] | None = None
    prefix: bool | None = None
    partial: bool | None = None
    tool_call_id: str | None = None


_MEDIA: dict[type[Struct], str] = {AudioPart: "audio", VideoPart: "video"}


def chat_messages(messages: Sequence[Message]) -> tuple[ChatMessage, ...]:
    """Raises InvalidRequest, naming `messages[i].content[j]`."""
    found = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    check_arguments(found, "messages")
    return found


def _message(message: Message, path: str) -> ChatMessage:
    role, name = Role(message.role), message.name
    said = message_of(role, _pieces(message.content, f"{path}.content"))
    if role is not Role.ASSISTANT:
        require(message.content is not None, f"{path}.content", "is missing")
        answered = message.tool_call_id if role is Role.TOOL else None
        return ChatMessage(role, said.content, name, tool_call_id=answered, media=said.media)
    calls = tuple(call.called() for call in message.tool_calls or ())
    reasoning = message.reasoning_content if message.reasoning_content is not None else message.reasoning
    return ChatMessage(role, said.content or message.refusal or "", name, reasoning, calls, media=said.media)


def _pieces(content: Content | None, path: str) -> list[str | Media]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [_piece(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _piece(part: Part, path: str) -> str | Media:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return text
        case ImagePart(image_url=ImageUrl(url=url, detail=detail)):
            return image_of(url, f"{path}.image_url.url", detail)
        case ImagePart(image_url=str(url)):
            return image_of(url, f"{path}.image_url")
        case FilePart(file=FileData(file_data=str(data), filename=name)):
            return file_of(data, f"{path}.file.file_data", name or "")
        case FilePart():
            message = f"{path}.file.file_id: no files are stored here; send the file as file_data"
            raise InvalidRequest(message, param=f"{path}.file.file_id")
        case _:
            what = _MEDIA[type(part)]
            raise InvalidRequest(f"{path}: {what} is not supported, only text, images and files", param=path)


def _predicted(content: Content) -> str:
    found = message_of(Role.ASSISTANT, _pieces(content, "prediction.content"))
    if found.media:
        field = found.media[0].field
        raise InvalidRequest(f"{field}: a prediction is text; leave images and files out", param=field)
    return found.content


class ToolFunction(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolGrammar(Struct):
    definition: str
    syntax: str


class CustomFormat(Struct):
    grammar: ToolGrammar | None = None


class CustomTool(Struct):
    """A tool that takes text. A grammar is shown to the model, and enforced where its form of calls allows it."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class Tool(_Typed):
    function: ToolFunction | None = None
    custom: CustomTool | None = None

    def spec(self) -> ToolSpec:
        match self:
            case Tool(type="custom", custom=CustomTool(name=name, description=description, format=format)):
                grammar = None if format is None else format.grammar
                shown = None if grammar is None else TextGrammar(grammar.syntax, grammar.definition)
                return custom_spec(name, description, shown)
            case Tool(function=ToolFunction() as one):
                parameters = cast("dict[str, Json]", one.parameters or {})
                return ToolSpec(one.name, one.description or "", parameters, one.strict is True)
            case _:
                raise AssertionError(self)


class Prediction(Struct):
    """Text that is expected in the answer, such as a file that is to be rewritten."""

    content: Content
    type: Literal["content"] = "content"


class ChatCompletionRequest(CompletionFields, kw_only=True):
    """Unknown fields are ignored unless they would change the answer; those are refused by name."""

    messages: Annotated[
        list[Message], supported("roles `system`, `developer`, `user`, `assistant`, `tool`; a string or parts")
    ]
    max_completion_tokens: Annotated[int | None, supported("the same; wins over `max_tokens`")] = None
    logprobs: Annotated[bool | None, supported("of all tokens, in whichever part they are")] = None
    top_logprobs: Annotated[int | None, supported("up to 20")] = None
    tools: Annotated[
        list[Tool] | None, supported("functions, `strict` or not; `custom` as a function with an `input`")
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        mapped(
            "`auto`, `none`, `required`, a function or custom tool by name, `allowed_tools`; the prompt is the same"
            " with all; what a model's form of calls does not allow is refused, see [http-api.md](../http-api.md)"
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, mapped("false: one call, where the model's form of calls can be distinguished from text")
    ] = None
    reasoning_effort: Annotated[str | None, mapped("passed to the model's template")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, supported("arguments of the model's template")] = None
    reasoning_budget: Annotated[
        int | None, supported("tokens of reasoning, after which it is ended; -1 is none; a 400 where nothing ends it")
    ] = None
    thinking_budget: Annotated[int | None, supported("the same")] = None
    thinking_token_budget: Annotated[int | None, supported("the same")] = None
    prediction: Annotated[
        Prediction | None, supported("text expected in the answer: tokens are drafted from it, the answer is the same")
    ] = None
    include_reasoning: Annotated[bool | None, supported("false: the answer's reasoning is not sent")] = None
    continue_final_message: Annotated[bool | None, supported("the answer continues the last message")] = None
    add_generation_prompt: Annotated[bool | None, mapped("false only with `continue_final_message`")] = None
    add_special_tokens: Annotated[Any, refused("the model's template writes them", False)] = None
    audio: Annotated[Any, refused("answers are text")] = None
    echo: Annotated[Any, refused("send the prompt to `/v1/completions`", False)] = None
    function_call: Annotated[Any, refused("use `tool_choice`", "none", "auto")] = None
    functions: Annotated[Any, refused("use `tools`", [])] = None
    modalities: Annotated[Any, refused("answers are text", ["text"], [])] = None
    web_search_options: Annotated[Any, refused("the server searches nothing")] = None
    moderation: Annotated[Any, refused("nothing is moderated")] = None
    metadata: Annotated[Any, ignored("it stays out of the prompt")] = None
    prompt_cache_key: Annotated[Any, ignored("every prompt is cached, by its content")] = None
    prompt_cache_options: Annotated[Any, ignored("every prompt is cached, by its content")] = None
    prompt_cache_retention: Annotated[Any, ignored("the store keeps what it has room for")] = None
    safety_identifier: Annotated[Any, ignored("it is passed to no one")] = None
    verbosity: Annotated[Any, ignored("say it in a message")] = None

    def wire_names(self) -> dict[str, str]:
        names = {"max_tokens": "max_completion_tokens"} if self.max_completion_tokens is not None else {}
        return names | self.grammar_names | {"reasoning_budget": _budget_name(self) or _BUDGETS[0]}

    def requests(self, context: RequestContext) -> list[GenerationRequest]:
        refuse_unsupported(self)
        request = completion_request(
            self,
            context,
            "chatcmpl",
            chat_prompt(self),
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            num_logprobs=num_logprobs(self),
            num_prompt_logprobs=self.prompt_logprobs,
            prediction="" if self.prediction is None else _predicted(self.prediction.content),
            reasoning=reasoning_limit(self),
        )
        return [request]


_BUDGETS = ("reasoning_budget", "thinking_budget", "thinking_token_budget")
"""The names that servers have for the same field."""


def chat_prompt(body: ChatCompletionRequest) -> ChatPrompt:
    """Raises InvalidRequest for what the body requests and is not supported."""
    template_kwargs = cast("dict[str, Json]", dict(body.chat_template_kwargs or {}))
    if body.reasoning_effort is not None:
        template_kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    choice = openai_tool_choice(body.tool_choice, one_call=body.parallel_tool_calls is False)
    messages, continues = chat_messages(body.messages), _continues(body)
    return ChatPrompt(messages, _tools(body), template_kwargs, choice, continues=continues)


def reasoning_limit(body: ChatCompletionRequest) -> ReasoningLimit | None:
    """Returns the limit on reasoning. A budget of -1 is no limit; without a budget, the effort `none` and a template's
    switch that is off are a limit of no tokens, as not every template has a switch. Raises InvalidRequest."""
    if (name := _budget_name(body)) is not None:
        budget = getattr(body, name)
        return None if budget == -1 else ReasoningLimit(budget)
    is_off = any((body.chat_template_kwargs or {}).get(name) is False for name in THINKING_SWITCHES)
    return NO_REASONING if is_off or body.reasoning_effort == "none" else None


def num_logprobs(body: ChatCompletionRequest) -> int | None:
    """The number of alternatives to report a token; None for no log probabilities. Raises InvalidRequest."""
    require(not body.top_logprobs or bool(body.logprobs), "top_logprobs", "needs logprobs to be true")
    return (body.top_logprobs or 0) if body.logprobs else None


def _budget_name(body: ChatCompletionRequest) -> str | None:
    return next((name for name in _BUDGETS if getattr(body, name) is not None), None)


def _continues(body: ChatCompletionRequest) -> bool:
    """Returns whether the answer continues the last message: by vLLM's field, or by DeepSeek's or Kimi's mark on the
    message."""
    last = body.messages[-1] if body.messages else None
    is_marked = last is not None and last.role == "assistant" and bool(last.prefix or last.partial)
    prompt, continues = body.add_generation_prompt, bool(body.continue_final_message)
    require(prompt is not False or continues, "add_generation_prompt", "can only be false with continue_final_message")
    require(not (continues and prompt), "continue_final_message", "and add_generation_prompt exclude each other")
    return is_marked or continues


def _tools(body: ChatCompletionRequest) -> tuple[ToolSpec, ...]:
    return tuple(tool.spec() for tool in body.tools or ())


def custom_names(body: ChatCompletionRequest) -> frozenset[str]:
    """The names of the custom tools."""
    return frozenset(tool.custom.name for tool in body.tools or () if tool.type == "custom" and tool.custom is not None)
