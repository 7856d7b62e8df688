"""POST /v1/messages and /v1/messages/count_tokens: their bodies, and the conversion of a body into a request.

Unknown fields and betas are ignored; the documentation's table is made of the declarations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.use_cases.tool_loop import Add, LoopPlan, ToolLoop
from domain.errors import InvalidRequest, require
from domain.ids import ModelId
from domain.printable import printable
from domain.request.chat import CallMode, Role, ToolChoice, named_tool
from domain.request.grammar import Grammar
from domain.request.reasoning_budget import NO_REASONING, ReasoningLimit
from domain.request.request import ChatPrompt, GenerationRequest
from domain.request.sampling import SamplingParams, StopRules
from domain.request.stream import AnswerPrepared
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.dialect import AnsweringContext, Operation
from interfaces.http.answering.server_tools import Offered, answering_with, callable_tools
from interfaces.http.anthropic.answer import MessageBody, MessageErrorBody, MessageFraming, message_body
from interfaces.http.anthropic.conversation import Content, MessageParam, conversation
from interfaces.http.anthropic.tools import WantedServer, offered_tools, opened_servers, tool_names, tool_specs
from interfaces.http.errors import renamed
from interfaces.http.fields.grammar_fields import form_grammar
from interfaces.http.fields.parameters import ignored, mapped, refuse_unsupported, refused, supported
from interfaces.http.fields.sampling_fields import length_limit, new_request, thinking_kwargs, tier_priority
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.services import Services


class ToolChoiceParam(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_MODES = {"auto": CallMode.AUTO, "none": CallMode.NONE, "any": CallMode.REQUIRED}


def tool_choice(choice: ToolChoiceParam | None) -> ToolChoice:
    """Raises InvalidRequest, naming the field."""
    if choice is None:
        return ToolChoice()
    if choice.type == "tool":
        require(choice.name is not None, "tool_choice.name", "is missing")
        return named_tool(choice.name or "")
    mode = _MODES.get(choice.type)
    if mode is None:
        raise InvalidRequest(
            f"tool_choice.type {printable(choice.type)!r} is none of auto, any, tool and none", param="tool_choice.type"
        )
    return ToolChoice(mode, one_call=choice.disable_parallel_tool_use is True)


class Thinking(Struct):
    type: str
    budget_tokens: int | None = None


class OutputConfig(Struct):
    effort: str | None = None
    format: dict[str, Any] | None = None


class PromptFields(Struct, kw_only=True):
    """The fields that make the prompt; null and absent mean the same."""

    model: Annotated[str | None, supported("without it, the default model answers")] = None
    messages: Annotated[
        list[MessageParam],
        supported(
            "roles `user` and `assistant`, and `system` and `developer` anywhere, in place; others speak as users;"
            " the text of a last one of the assistant's is continued"
        ),
    ]
    system: Annotated[
        Content | None,
        supported("a string or blocks of text; blocks that start `x-anthropic-billing-header:` are dropped"),
    ] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        mapped(
            "those with an `input_schema`, `strict` or not; `mcp_toolset` chooses among the tools of a server; others,"
            " that the server would run (`web_search_*`, ...), become nothing: agents offer them always"
        ),
    ] = None
    tool_choice: Annotated[
        ToolChoiceParam | None,
        mapped(
            "`auto`, `any`, `tool`, `none`, `disable_parallel_tool_use`; the prompt is the same with all; what a"
            " model's form of calls does not allow is refused, see [http-api.md](../http-api.md)"
        ),
    ] = None
    thinking: Annotated[
        Thinking | None,
        mapped(
            "`disabled` and absent request no reasoning of the model's template, every other type requests it;"
            " after `budget_tokens` the reasoning is ended, where the model has tokens for that"
        ),
    ] = None
    output_config: Annotated[
        OutputConfig | None,
        mapped("`effort` goes to the model's template as `low`, `medium` or `high`; `format` is a `json_schema`"),
    ] = None
    output_format: Annotated[dict[str, Any] | None, supported("the older name of `output_config.format`")] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    store: Annotated[
        bool | None, supported("Cairn's own: false keeps what is computed for this request out of the store")
    ] = None
    mcp_servers: Annotated[
        list[dict[str, Any]] | None,
        mapped("the tools of [configured servers](#tools-of-servers), by `name`; refused where none is configured"),
    ] = None
    compaction: Annotated[Any, refused("send the request for a summary as a message")] = None
    cache_control: Annotated[Any, ignored("every prompt is cached, wherever it is marked")] = None
    context_management: Annotated[Any, ignored("nothing is taken out of the conversation")] = None
    billing_policy: Annotated[Any, ignored("nothing is billed")] = None
    speed: Annotated[Any, ignored("every request is computed as fast as it can be")] = None

    @property
    def formats(self) -> dict[str, dict[str, Any]]:
        """The forms that the answer is to have, by field."""
        newer = None if self.output_config is None else self.output_config.format
        return {name: form for name, form in ((FORMAT, newer), (OLDER_FORMAT, self.output_format)) if form is not None}

    @property
    def grammar(self) -> Grammar | None:
        """Raises InvalidRequest, naming the field."""
        if len(formats := self.formats) > 1:
            raise InvalidRequest(f"{OLDER_FORMAT} and {FORMAT} exclude each other", param=OLDER_FORMAT)
        return next((form_grammar(form, name) for name, form in formats.items()), None)


class MessagesRequest(PromptFields, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[
        int | None, supported("an upper bound; without it, or with less room, the context is the bound")
    ] = None
    stream: Annotated[bool | None, supported("server-sent events, each with its `event:` line")] = None
    stop_sequences: Annotated[list[str] | None, supported("up to 16")] = None
    speculation: Annotated[bool | None, supported("Cairn's own: false drafts no tokens; the answer is the same")] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default")] = None
    top_p: Annotated[float | None, supported("0 to 1; 0 is the most likely token")] = None
    top_k: Annotated[int | None, supported("0 is off")] = None
    service_tier: Annotated[
        str | None, mapped("Cairn's own `batch`: others go first; `usage` reports the tier, `batch` or `standard`")
    ] = None
    metadata: Annotated[Any, ignored("it stays out of the prompt")] = None
    container: Annotated[Any, ignored("there are none")] = None
    thread: Annotated[Any, refused("conversations are not stored; send all messages")] = None
    diagnostics: Annotated[Any, ignored("`/v1/cache/explain` says where a prompt differs")] = None
    fallbacks: Annotated[Any, ignored("no model declines for another")] = None
    fallback_credit_token: Annotated[Any, ignored("nothing is billed")] = None
    inference_geo: Annotated[Any, ignored("everything is computed here")] = None

    @property
    def servers(self) -> Mapping[str, WantedServer]:
        """The servers whose tools the body wants; none until `prepared`."""
        return {}

    def wire_names(self) -> dict[str, str]:
        """Without a format, a grammar comes from tools."""
        return {**_NAMES, "grammar": next(iter(self.formats), "tools")}

    def requests(self, context: RequestContext) -> list[GenerationRequest]:
        request = new_request(
            self,
            context,
            "msg",
            chat_prompt(self, None if self.servers else ()),
            sampling=SamplingParams.chosen(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k),
            stop=StopRules(length_limit(self.max_tokens), stop=tuple(self.stop_sequences or ())),
            persist=self.store is not False,
            grammar=self.grammar,
            reasoning=reasoning_limit(self),
            priority=tier_priority(self.service_tier),
        )
        return [request]


class PreparedRequest(MessagesRequest, kw_only=True):
    """A request that wants tools of servers. Clients send none of these fields."""

    wanted: Annotated[dict[str, WantedServer], supported("made of `mcp_servers`")]

    @property
    def servers(self) -> Mapping[str, WantedServer]:
        return self.wanted


async def prepared(body: MessagesRequest, context: RequestContext) -> MessagesRequest:
    """Returns the body with the servers that it names. Raises InvalidRequest."""
    wanted = await opened_servers(body.mcp_servers or (), body.tools or (), context)
    return PreparedRequest(**msgspec.structs.asdict(body), wanted=wanted) if wanted else body


def answering(
    body: MessagesRequest, context: RequestContext, requests: Sequence[GenerationRequest]
) -> AnsweringContext:
    """The answer to a body; of several steps where the server has tools to call."""
    first_step = partial(_first_step, body, context, requests[0]) if body.servers else None
    return answering_with(first_step, context, requests)


async def _first_step(
    body: MessagesRequest, context: RequestContext, request: GenerationRequest, _loop: ToolLoop, add: Add
) -> tuple[GenerationRequest, LoopPlan]:
    """Makes the first step of a body that names servers, and tells the answer which calls the server runs."""
    with renamed(body.wire_names()):
        own = await context.run(tool_names, body.tools or ())
        offered = await offered_tools(body.servers, own, context)
        tools = callable_tools(offered, own)
        add(AnswerPrepared(tools))
        return replace(request, prompt=await context.run(chat_prompt, body, offered)), LoopPlan(tools)


class CountTokensRequest(PromptFields, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""


FORMAT, OLDER_FORMAT = "output_config.format", "output_format"
_NAMES = {"stop": "stop_sequences", "reasoning_budget": "thinking.budget_tokens"}


def chat_prompt(body: PromptFields, offered: Sequence[Offered] | None = ()) -> ChatPrompt:
    """The prompt of a body. `offered`: the tools of servers; None until they are listed. Raises InvalidRequest for what
    the body requests and is not supported."""
    refuse_unsupported(body)
    output = body.output_config
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    messages = conversation(body.system, body.messages)
    return ChatPrompt(
        messages,
        tool_specs(body.tools or (), offered or ()),
        thinking_kwargs(thinks, None if output is None else output.effort),
        # what it names may not be listed yet
        ToolChoice() if offered is None else tool_choice(body.tool_choice),
        continues=messages[-1:] != () and messages[-1].role is Role.ASSISTANT,
    )


def reasoning_limit(body: MessagesRequest) -> ReasoningLimit | None:
    """Raises InvalidRequest."""
    thinking = body.thinking
    if thinking is not None and thinking.type == "disabled":
        return NO_REASONING
    if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
        return None
    return ReasoningLimit(thinking.budget_tokens, is_firm=False)


MESSAGES = Operation(
    path="/v1/messages",
    operation_id="createMessage",
    body_type=MessagesRequest,
    answer_type=MessageBody,
    answer=message_body,
    framing=MessageFraming,
    prepared=prepared,
    answering=answering,
)


class TokenCountBody(Struct):
    """The whole prompt, as the model's template renders it: messages, system and tools."""

    input_tokens: int


def count_tokens_routes(services: Services) -> list[HTTPRouteHandler]:
    """The handler of /v1/messages/count_tokens."""

    @json_route("/v1/messages/count_tokens", "countMessageTokens", CountTokensRequest, error_type=MessageErrorBody)
    async def count_tokens(body: CountTokensRequest, context: RequestContext) -> TokenCountBody:
        model = ModelId(body.model or services.default_model)
        wanted = await opened_servers(body.mcp_servers or (), body.tools or (), context)
        offered = await offered_tools(wanted, await context.run(tool_names, body.tools or ()), context)
        prompt = await context.run(chat_prompt, body, offered)
        named = GenerationRequest(services.ids.request_id("count"), model, prompt)
        (request,) = await context.admit([named])
        return TokenCountBody(await services.tokenize.count(request))

    return [count_tokens]
