"""What a body asks for, in the domain's words."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgspec

from domain.errors import InvalidRequest
from domain.ids import ModelId
from domain.request.chat import ChatMessage, Json, Role, ToolCall, ToolSpec
from domain.request.grammar import Grammar, json_object_grammar, json_schema_grammar
from domain.request.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from interfaces.http.fields.parameters import refuse_unsupported
from interfaces.http.fields.sampling_fields import thinking_kwargs
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.bodies import AnswerFields, ChatRequest, GenerateRequest, Message
from interfaces.http.ollama.options import Options, sampling_params, stop_rules

_ROLES = {role.value: role for role in Role}
_LATEST = ":latest"


def generation_request(body: AnswerFields, context: RequestContext, prompt: Prompt) -> GenerationRequest:
    """Raises InvalidRequest for whatever the body asks for that cannot be had."""
    options = body.options or Options()
    refuse_unsupported(body)
    refuse_unsupported(options)
    return GenerationRequest(
        context.services.ids.request_id("ollama"),
        model_id(body.model, context.services.default_model),
        prompt,
        sampling=sampling_params(options),
        stop=stop_rules(options),
        cache_salt=body.cache_salt or "",
        persist=body.store is not False,
        trace_carrier=context.services.trace_context(),
        grammar=_grammar(body.format),
    )


def model_id(name: str | None, default: str) -> ModelId:
    return ModelId((name or default).removesuffix(_LATEST))


def chat_prompt(body: ChatRequest) -> ChatPrompt:
    """Raises InvalidRequest, naming `messages[i].field`."""
    messages = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(body.messages))
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
    if not body.prompt:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    if body.raw:
        if body.system:
            raise InvalidRequest("system: a raw prompt has no messages", param="system")
        return TextPrompt(body.prompt)
    system = [ChatMessage(Role.SYSTEM, body.system)] if body.system else []
    return ChatPrompt((*system, ChatMessage(Role.USER, body.prompt)), (), _template_kwargs(body.think))


def _message(message: Message, path: str) -> ChatMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(f"{path}.role must be one of {', '.join(_ROLES)}", param=f"{path}.role")
    if message.images:
        raise InvalidRequest(f"{path}.images: images are not supported, only text", param=f"{path}.images")
    calls = tuple(
        ToolCall(call.id, call.function.name, msgspec.json.encode(call.function.arguments).decode())
        for call in message.tool_calls or ()
    )
    return ChatMessage(
        role, message.content, message.tool_name, message.thinking, calls, tool_call_id=message.tool_call_id
    )


def _with_call_ids(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """Calls and results have no ids here: a template that wants one gets what both sides of a call can agree on."""
    if any(call.id for message in messages for call in message.tool_calls):
        return tuple(messages)
    told: list[ChatMessage] = []
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
        told.append(message)
    return tuple(told)


def _grammar(format: str | dict[str, object] | None) -> Grammar | None:
    if not format:
        return None
    if isinstance(format, dict):
        return json_schema_grammar(cast("dict[str, Json]", format), "format")
    if format != "json":
        raise InvalidRequest("format must be json or a JSON schema", param="format")
    return json_object_grammar()


def _template_kwargs(think: bool | str | None) -> dict[str, Json]:
    if think is None:
        return {}
    return thinking_kwargs(bool(think), think if isinstance(think, str) and think else None)
