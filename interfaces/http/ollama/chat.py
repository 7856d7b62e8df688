"""POST /api/chat and POST /api/generate: their bodies and `options`, and the conversion of a body into a request.

Unknown fields are ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Struct

from domain.errors import InvalidRequest, require
from domain.request.chat import ChatMessage, Json, Role, ToolCall, ToolSpec
from domain.request.grammar import Grammar, json_object_grammar, json_schema_grammar
from domain.request.media import Image
from domain.request.reasoning_budget import NO_REASONING
from domain.request.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from domain.request.sampling import SamplingParams, StopRules
from interfaces.http.answering.dialect import Operation, Started
from interfaces.http.fields.media_fields import image_of
from interfaces.http.fields.parameters import ignored, mapped, refuse_unsupported, refused, supported
from interfaces.http.fields.sampling_fields import new_request, thinking_kwargs
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.answer import (
    MEDIA_TYPE,
    AnswerBody,
    ChatAnswer,
    GenerateAnswer,
    OllamaAnswer,
    Piece,
    Shape,
    chat_answer,
    created_at,
    generate_answer,
)
from interfaces.http.ollama.loading import KeepAlive, loaded_or_unloaded, model_id

_LOADING = "the server loads models its own way"


Whole: TypeAlias = int | float
"""A whole number; clients without integers write 20 as 20.0."""


class Options(Struct, kw_only=True):
    """The options of a body. Null and absent mean the same for every field."""

    num_predict: Annotated[
        Whole | None, mapped("an upper bound; negative is none; with less room, the context is the bound")
    ] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default")] = None
    top_k: Annotated[Whole | None, supported("0 or less is off, as by default")] = None
    top_p: Annotated[float | None, supported("0 to 1; 0 is the most likely token; 1 by default")] = None
    min_p: Annotated[float | None, supported("0 to 1, 0 by default")] = None
    seed: Annotated[Whole | None, supported("the randomness of the answer; -1 is random")] = None
    stop: Annotated[str | list[str] | None, supported("up to 16; never part of the answer")] = None
    repeat_penalty: Annotated[float | None, mapped("over the whole answer and prompt; 1 by default")] = None
    presence_penalty: Annotated[float | None, supported("0 by default")] = None
    frequency_penalty: Annotated[float | None, supported("0 by default")] = None
    mirostat: Annotated[Whole | None, refused("this sampler is not implemented", 0)] = None
    typical_p: Annotated[float | None, refused("this sampler is not implemented", 1.0)] = None
    tfs_z: Annotated[float | None, refused("this sampler is not implemented", 1.0)] = None
    num_ctx: Annotated[Any, ignored("the context is the model's, or `model.context_length`")] = None
    num_keep: Annotated[Any, ignored("nothing is taken out of the conversation")] = None
    repeat_last_n: Annotated[Any, ignored("`repeat_penalty` looks at everything")] = None
    mirostat_tau: Annotated[Any, ignored("it belongs to `mirostat`")] = None
    mirostat_eta: Annotated[Any, ignored("it belongs to `mirostat`")] = None
    penalize_newline: Annotated[Any, ignored("a line break is a token like any other")] = None
    num_batch: Annotated[Any, ignored(_LOADING)] = None
    num_gpu: Annotated[Any, ignored(_LOADING)] = None
    main_gpu: Annotated[Any, ignored(_LOADING)] = None
    low_vram: Annotated[Any, ignored(_LOADING)] = None
    numa: Annotated[Any, ignored(_LOADING)] = None
    use_mmap: Annotated[Any, ignored(_LOADING)] = None
    use_mlock: Annotated[Any, ignored(_LOADING)] = None
    num_thread: Annotated[Any, ignored(_LOADING)] = None
    f16_kv: Annotated[Any, ignored(_LOADING)] = None
    logits_all: Annotated[Any, ignored(_LOADING)] = None
    vocab_only: Annotated[Any, ignored(_LOADING)] = None
    embedding_only: Annotated[Any, ignored(_LOADING)] = None


WIRE_NAMES: Mapping[str, str] = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "grammar": "format",
    **{name: f"options.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: f"options.{name}" for name in ("presence_penalty", "frequency_penalty")},
}
"""The client's names for fields that the domain names otherwise."""


def _whole(options: Options, name: str) -> int | None:
    """Returns the value of a field; None without one. Raises InvalidRequest."""
    value: Whole | None = getattr(options, name)
    require(not isinstance(value, float) or value.is_integer(), f"options.{name}", "must be a whole number")
    return None if value is None else int(value)


def sampling_params(options: Options, num_logprobs: int | None = None) -> SamplingParams:
    """Raises InvalidRequest."""
    top_k = _whole(options, "top_k")
    return SamplingParams.chosen(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=None if top_k is None else max(0, top_k),
        min_p=options.min_p,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=_whole(options, "seed"),
        num_logprobs=num_logprobs,
    )


def stop_rules(options: Options) -> StopRules:
    """Raises InvalidRequest."""
    stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
    limit = _whole(options, "num_predict")
    return StopRules(None if limit is None or limit < 0 else limit, stop=tuple(stop))


class CalledFunction(Struct):
    name: str
    arguments: dict[str, Any] | None = None


class CalledTool(Struct):
    function: CalledFunction
    id: str | None = None


class Message(Struct):
    """A message of the conversation; null and absent mean the same. `tool_name` or `tool_call_id`: of the call that it
    is the result of."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolFunction(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct):
    function: ToolFunction
    type: str | None = None


class AnswerFields(Struct, kw_only=True):
    """The fields that both have; null and absent mean the same."""

    model: Annotated[
        str | None, supported("a `:latest` at its end is left out; without it, the default model answers")
    ] = None
    stream: Annotated[bool | None, supported("true by default: a JSON object a line (`application/x-ndjson`)")] = None
    format: Annotated[
        str | dict[str, Any] | None, supported("`json` or a JSON schema: the answer is constrained to it")
    ] = None
    options: Annotated[Options | None, mapped("see below")] = None
    think: Annotated[
        bool | str | None,
        mapped(
            "true, false, `low`, `medium` or `high`, if the model's template knows it; with false, reasoning is ended"
            " where the model begins it all the same, and never sent"
        ),
    ] = None
    keep_alive: KeepAlive = None
    logprobs: Annotated[bool | None, supported("of all tokens, in whichever part they are")] = None
    top_logprobs: Annotated[int | None, supported("up to 20")] = None
    truncate: Annotated[Any, ignored("what does not fit is refused")] = None
    shift: Annotated[Any, ignored("what does not fit is refused")] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    speculation: Annotated[bool | None, supported("Cairn's own: false drafts no tokens; the answer is the same")] = None
    store: Annotated[
        bool | None, supported("Cairn's own: false keeps what is computed for this request out of the store")
    ] = None

    def __post_init__(self) -> None:
        if self.stream is None:  # a stream unless the client disables it
            self.stream = True


class ChatRequest(AnswerFields, kw_only=True):
    """The body of POST /api/chat."""

    messages: Annotated[
        list[Message] | None,
        supported(
            "roles `system`, `user`, `assistant` and `tool` anywhere, in place; `images` in base64, before the text;"
            " none load the model"
        ),
    ] = None
    tools: Annotated[list[Tool] | None, supported("functions")] = None

    @property
    def is_empty(self) -> bool:
        return not self.messages

    def wire_names(self) -> Mapping[str, str]:
        return WIRE_NAMES

    def requests(self, context: RequestContext) -> list[GenerationRequest]:
        return [_request(self, context, chat_prompt(self))]


class GenerateRequest(AnswerFields, kw_only=True):
    """The body of POST /api/generate."""

    prompt: Annotated[str | None, supported("a user's message, unless `raw`; none loads the model")] = None
    system: Annotated[str | None, supported("a system message before it; not with `raw`")] = None
    raw: Annotated[bool | None, supported("the model gets the prompt without its template")] = None
    suffix: Annotated[str | None, refused("infilling is not implemented", "")] = None
    template: Annotated[str | None, refused("the model's own template is used", "")] = None
    context: Annotated[list[int] | None, refused("send conversations to `/api/chat`", [])] = None
    images: Annotated[list[str] | None, supported("in base64, before the prompt; not with `raw`")] = None
    width: Annotated[Any, refused("answers are text", 0)] = None
    height: Annotated[Any, refused("answers are text", 0)] = None
    steps: Annotated[Any, refused("answers are text", 0)] = None

    @property
    def is_empty(self) -> bool:
        return not self.prompt and not self.images

    def wire_names(self) -> Mapping[str, str]:
        return {**WIRE_NAMES, "messages": "prompt"}

    def requests(self, context: RequestContext) -> list[GenerationRequest]:
        return [_request(self, context, generate_prompt(self))]


_ROLES = {role.value: role for role in Role}


def _request(body: AnswerFields, context: RequestContext, prompt: Prompt) -> GenerationRequest:
    """Raises InvalidRequest for what the body requests and is not supported."""
    options = body.options or Options()
    refuse_unsupported(body)
    refuse_unsupported(options)
    require(not body.top_logprobs or bool(body.logprobs), "top_logprobs", "needs logprobs to be true")
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return new_request(
        body,
        context,
        "ollama",
        prompt,
        model=model_id(body.model, context.services.default_model),
        sampling=sampling_params(options, num_logprobs),
        stop=stop_rules(options),
        persist=body.store is not False,
        grammar=_grammar(body.format),
        reasoning=NO_REASONING if body.think is False else None,
    )


def chat_prompt(body: ChatRequest) -> ChatPrompt:
    """Raises InvalidRequest, naming `messages[i].field`."""
    messages = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(body.messages or ()))
    tools = tuple(
        ToolSpec(
            tool.function.name,
            tool.function.description or "",
            cast("dict[str, Json]", tool.function.parameters or {}),
        )
        for tool in body.tools or ()
    )
    return ChatPrompt(_with_call_ids(messages), tools, _template_kwargs(body.think))


def generate_prompt(body: GenerateRequest) -> Prompt:
    """Raises InvalidRequest."""
    prompt = body.prompt or ""
    require(bool(prompt), "prompt", "must not be empty")
    if body.raw:
        for name, value in (("system", body.system), ("images", body.images)):
            if value:
                raise InvalidRequest(f"{name}: a raw prompt has no messages", param=name)
        return TextPrompt(prompt)
    system = [ChatMessage(Role.SYSTEM, body.system)] if body.system else []
    asked = ChatMessage(Role.USER, prompt, media=_images(body.images, "images"))
    return ChatPrompt((*system, asked), (), _template_kwargs(body.think))


def _message(message: Message, path: str) -> ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(_ROLES)}", param=f"{path}.role")
    calls = tuple(
        ToolCall(call.id or "", call.function.name, msgspec.json.encode(call.function.arguments or {}).decode())
        for call in message.tool_calls or ()
    )
    return ChatMessage(
        role,
        message.content or "",
        message.tool_name,
        message.thinking,
        calls,
        tool_call_id=message.tool_call_id,
        media=_images(message.images, f"{path}.images"),
    )


def _images(images: Sequence[str] | None, path: str) -> tuple[Image, ...]:
    """Clients send base64, some of them as a data URL."""
    return tuple(
        image_of(text, f"{path}[{index}]", is_url=text.startswith("data:")) for index, text in enumerate(images or ())
    )


def _with_call_ids(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Calls and results have no ids here: a template that wants one gets what both sides of a call can agree on."""
    if any(call.id for message in messages for call in message.tool_calls):
        return tuple(messages)
    found: list[ChatMessage] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message.tool_calls:
            calls = [
                ToolCall(f"call_{index}_{at}", call.name, call.arguments) for at, call in enumerate(message.tool_calls)
            ]
            waiting = [call.id for call in calls]
            message = replace(message, tool_calls=tuple(calls))
        elif message.role is Role.TOOL and message.tool_call_id is None and waiting:
            message = replace(message, tool_call_id=waiting.pop(0))
        found.append(message)
    return tuple(found)


def _grammar(format: str | dict[str, object] | None) -> Grammar | None:
    if not format:
        return None
    if isinstance(format, dict):
        return json_schema_grammar(cast("dict[str, Json]", format), "format")
    require(format == "json", "format", "must be json or a JSON schema")
    return json_object_grammar()


def _template_kwargs(think: bool | str | None) -> dict[str, Json]:
    return thinking_kwargs(None if think is None else bool(think), think if isinstance(think, str) and think else None)


BodyT = TypeVar("BodyT", ChatRequest, GenerateRequest)


def _operation(
    path: str, operation_id: str, body_type: type[BodyT], answer_type: type[AnswerBody], shape: Shape
) -> Operation[BodyT]:
    """A route that generates. `shape`: of its answers' lines."""

    def framing(body: BodyT, started: Started) -> OllamaAnswer:
        return OllamaAnswer(body.model, started, shape if body.think is not False else without_thinking)

    def without_thinking(piece: Piece, fields: dict[str, Any]) -> AnswerBody:
        """For reasoning that no known token ends; its lines are empty, as a keep-alive is."""
        return shape(replace(piece, thinking=""), fields)

    async def instead(body: BodyT, context: RequestContext) -> AnswerBody | None:
        if not body.is_empty:
            return None
        reason, services = await loaded_or_unloaded(context, body.model, body.keep_alive), context.services
        fields = {"model": body.model or services.default_model, "created_at": created_at(services.clock)}
        return shape(Piece(), {**fields, "done": True, "done_reason": reason})

    return Operation(
        path=path,
        operation_id=operation_id,
        body_type=body_type,
        answer_type=answer_type,
        answer=lambda body, started, choices: framing(body, started).whole(choices[0]),
        framing=framing,
        instead=instead,
        stream_type=MEDIA_TYPE,
    )


CHAT = _operation("/api/chat", "ollamaChat", ChatRequest, ChatAnswer, chat_answer)
GENERATE = _operation("/api/generate", "ollamaGenerate", GenerateRequest, GenerateAnswer, generate_answer)
