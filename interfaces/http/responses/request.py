"""The body of POST /v1/responses, with the stored items that it refers to, and its conversion into a request."""

# Fields of ResolvedRequest stand for properties of its base:
# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from domain.errors import InvalidRequest, require
from domain.ids import RequestId
from domain.request.chat import CallMode, ChatMessage, Role, ToolChoice
from domain.request.reasoning_budget import NO_REASONING
from domain.request.request import ChatPrompt, GenerationRequest
from domain.request.sampling import SamplingParams, StopRules
from interfaces.http.answering.server_tools import Offered
from interfaces.http.fields.grammar_fields import form_grammar
from interfaces.http.fields.parameters import ignored, mapped, refuse_unsupported, refused, supported
from interfaces.http.fields.sampling_fields import (
    length_limit,
    new_request,
    openai_tool_choice,
    thinking_kwargs,
    tier_priority,
)
from interfaces.http.incoming.json_body import converted
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.responses import stored
from interfaces.http.responses.compaction import MAX_TOKENS, NO_SEAL, Compacting, Seal
from interfaces.http.responses.conversation import conversation, tools_in
from interfaces.http.responses.items import ApprovalRequestItem, ItemReference, TriggerItem, decoded, kind_of
from interfaces.http.responses.server_tools import MCP, McpTool, raw_items
from interfaces.http.responses.stored import LookupBudget
from interfaces.http.responses.tools import Tools

Approved: TypeAlias = tuple[str, ApprovalRequestItem]
"""A request that the client approves, after the path of its approval."""

FORMAT = "text.format"
LOGPROBS = "message.output_text.logprobs"
MAX_REFERENCES = 1_000

_NAMES = {"messages": "input", "max_tokens": "max_output_tokens"}


class Reasoning(Struct):
    effort: str | None = None
    summary: str | None = None


class TextConfig(Struct):
    format: dict[str, Any] | None = None


class ContextEdit(Struct):
    """`type`: `compaction`. `compact_threshold`: in tokens of the prompt."""

    type: str
    compact_threshold: int | None = None


class ResponsesRequest(Struct, kw_only=True, dict=True):
    """The body. Null and absent mean the same for every field; unknown fields are ignored."""

    model: Annotated[str | None, supported("without it, the default model answers")] = None
    input: Annotated[
        str | list[Raw],
        supported("a string or items; roles anywhere, in place; an item of an unknown type is refused"),
    ]
    instructions: Annotated[str | None, supported("a system message before the input")] = None
    stream: Annotated[bool | None, supported("server-sent events, each with its `event:` line")] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        mapped(
            "`function`; `custom` as a function with an `input`; `namespace` as its functions; `mcp` as the tools of a"
            " [configured server](#tools-of-servers); all others, which the server would run, become nothing"
        ),
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        mapped(
            "`auto`, `none`, `required`, a function or custom tool by name, `allowed_tools`; the prompt is the"
            " same with all; what a model's form of calls does not allow is refused, see [http-api.md](../http-api.md)"
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, mapped("false: one call, where the model's form of calls can be distinguished from text")
    ] = None
    max_output_tokens: Annotated[
        int | None, supported("an upper bound; without it, or with less room, the context is the bound")
    ] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default")] = None
    top_p: Annotated[float | None, supported("0 to 1; 0 is the most likely token")] = None
    reasoning: Annotated[
        Reasoning | None,
        mapped(
            "`effort` goes to the model's template as `low`, `medium` or `high`, and `none` as no reasoning, which is"
            " ended where a model begins it all the same; with a `summary`, the reasoning itself is sent as the summary"
        ),
    ] = None
    text: Annotated[
        TextConfig | None, mapped("`format`: `text`, `json_object`, `json_schema`; `verbosity` is ignored")
    ] = None
    include: Annotated[
        list[str] | None,
        mapped(
            "`message.output_text.logprobs`: the log probabilities of the answer's text;"
            " `reasoning.encrypted_content` gives reasoning items a handle; others add nothing"
        ),
    ] = None
    top_logprobs: Annotated[
        int | None, supported("0 to 20 alternatives to each token, shown where `include` asks for log probabilities")
    ] = None
    presence_penalty: Annotated[float | None, supported("-2 to 2")] = None
    frequency_penalty: Annotated[float | None, supported("-2 to 2")] = None
    store: Annotated[
        bool | None,
        supported(
            "true by default: input and answer are kept, for GET and `previous_response_id`; what is computed is kept"
            " in the prefix cache either way, and what is remembered of tool calls in memory alone where it is false"
        ),
    ] = None
    service_tier: Annotated[
        str | None, mapped("`flex`: others go first; the answer reports the tier it was served in, `flex` or `default`")
    ] = None
    metadata: Annotated[dict[str, str] | None, supported("repeated in the answer; it stays out of the prompt")] = None
    seed: Annotated[int | None, supported("Cairn's own: the randomness of the answer; -1 is random")] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    speculation: Annotated[bool | None, supported("Cairn's own: false drafts no tokens; the answer is the same")] = None
    previous_response_id: Annotated[
        str | None, supported("the items of that response, and of all before it, come before the input")
    ] = None
    context_management: Annotated[
        list[ContextEdit] | None,
        mapped(
            "`compaction`: a prompt of `compact_threshold` tokens or more is compacted before it is answered, and a"
            " stream begins after that"
        ),
    ] = None
    conversation: Annotated[Any, refused("conversations are not stored")] = None
    prompt: Annotated[Any, refused("stored prompts are not implemented")] = None
    background: Annotated[bool | None, refused("requests do not run in the background", False)] = None
    moderation: Annotated[Any, refused("nothing is moderated")] = None
    truncation: Annotated[Any, ignored("what does not fit is refused")] = None
    prompt_cache_key: Annotated[str | None, ignored("every prompt is cached, by its content")] = None
    prompt_cache_options: Annotated[Any, ignored("every prompt is cached, by its content")] = None
    prompt_cache_retention: Annotated[Any, ignored("the store keeps what it has room for")] = None
    max_tool_calls: Annotated[
        int | None, supported("the most calls of servers' tools in one response; the server's own limit stays")
    ] = None
    stream_options: Annotated[Any, ignored("nothing is obfuscated")] = None
    background_options: Annotated[Any, ignored("they belong to `background`")] = None
    access_programs: Annotated[Any, ignored("there are none")] = None
    image: Annotated[Any, ignored("images are seen as they were sent")] = None
    personality: Annotated[Any, ignored("send it as instructions")] = None
    client_metadata: Annotated[Any, ignored("it stays out of the prompt")] = None
    safety_identifier: Annotated[str | None, ignored("it is passed to no one")] = None
    user: Annotated[Any, ignored("it is passed to no one")] = None

    @property
    def earlier_items(self) -> Sequence[Raw]:
        """The items before those of the input."""
        return ()

    @property
    def own_items(self) -> list[Raw]:
        """The items of the input; a string is a message."""
        items = self.input
        return [Raw(msgspec.json.encode({"role": "user", "content": items}))] if isinstance(items, str) else items

    @property
    def work(self) -> Compacting | None:
        """The compaction that the answer is; None for any other answer, and until `prepared`."""
        return None

    @property
    def made(self) -> Sequence[dict[str, Any]]:
        """What was made before the first step, the first output items: the lists of servers' tools, a compaction, and
        the calls that were approved."""
        return ()

    @property
    def servers(self) -> Mapping[str, McpTool]:
        """The servers whose tools the body asks for; none until `prepared`."""
        return {}

    @property
    def approved(self) -> Sequence[Approved]:
        return ()

    @property
    def offered(self) -> Sequence[Offered] | None:
        """The tools of servers; None until they are listed."""
        return None

    @cached_property
    def is_compaction(self) -> bool:
        """True if the input ends with a trigger. Raises InvalidRequest."""
        items = self.input
        path = f"input[{len(items) - 1}]"
        return not isinstance(items, str) and bool(items) and kind_of(items[-1], path) is TriggerItem

    @property
    def compact_threshold(self) -> int | None:
        """Raises InvalidRequest."""
        for at, edit in enumerate(self.context_management or ()):
            path = f"context_management[{at}]"
            require(edit.type == "compaction", f"{path}.type", "must be 'compaction': there is no other kind")
            is_given = edit.compact_threshold is not None and edit.compact_threshold > 0
            require(is_given, f"{path}.compact_threshold", "must be a number of tokens, at least 1")
        return min((edit.compact_threshold or 0 for edit in self.context_management or ()), default=None)

    def seal(self, context: RequestContext) -> Seal:
        """The seal of the compactions that the request reads and makes."""
        model = self.model or context.services.default_model
        return Seal(model, context.document_owner(self.cache_salt).tenant)

    @cached_property
    def tool_table(self) -> Tools:
        """All tools that the body names, also in its input. Raises InvalidRequest."""
        named = [(f"tools[{index}]", tool) for index, tool in enumerate(self.tools or ())]
        return Tools([*named, *tools_in(self.earlier_items), *tools_in(self.input)], self.offered or ())

    @property
    def shows_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def format(self) -> dict[str, Any] | None:
        return None if self.text is None else self.text.format

    @property
    def effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort

    def wire_names(self) -> dict[str, str]:
        """Without a format, a grammar comes from tools."""
        return {**_NAMES, "grammar": FORMAT if self.format is not None else "tools"}

    def requests(self, context: RequestContext) -> list[GenerationRequest]:
        is_compaction = self.is_compaction
        max_tokens = length_limit(self.max_output_tokens)
        if is_compaction and max_tokens is None:
            max_tokens = MAX_TOKENS
        request = new_request(
            self,
            context,
            "resp",
            chat_prompt(self, self.seal(context)),
            sampling=SamplingParams.chosen(
                temperature=self.temperature,
                top_p=self.top_p,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                seed=self.seed,
                num_logprobs=(self.top_logprobs or 0) if self.shows_logprobs else self.top_logprobs,
            ),
            stop=StopRules(max_tokens),
            cache_salt=context.salt(self.cache_salt),
            keeps_text=self.store is not False,
            grammar=None if is_compaction else form_grammar(self.format, FORMAT),
            # Ends it where a template has no switch, or where switching would change the prompt of a compaction.
            reasoning=NO_REASONING if is_compaction or self.effort == "none" else None,
            priority=tier_priority(self.service_tier),
        )
        id = RequestId(request.id.replace("-", "_", 1))  # ids of responses begin with `resp_` for clients that look
        return [replace(request, id=id)]


class ResolvedRequest(ResponsesRequest, kw_only=True):
    """A request with what it refers to and what was made for it. Clients send none of these fields."""

    earlier: Annotated[list[Raw], supported("made of `previous_response_id`")] = []
    compacting: Annotated[Compacting | None, supported("made of a trigger")] = None
    made: Annotated[list[dict[str, Any]], supported("made before the first step")] = []
    servers: Annotated[dict[str, McpTool], supported("made of tools of type `mcp`")] = {}
    approved: Annotated[list[Approved], supported("made of approvals in the input")] = []
    offered: Annotated[list[Offered] | None, supported("listed by the servers")] = None

    @property
    def earlier_items(self) -> Sequence[Raw]:
        return self.earlier

    @property
    def work(self) -> Compacting | None:
        return self.compacting


def with_fields(body: ResponsesRequest, **changed: Any) -> ResolvedRequest:
    """Returns the body with other fields, and those of a ResolvedRequest."""
    fields: dict[str, Any] = {**msgspec.structs.asdict(body), **changed}
    return ResolvedRequest(**fields)


async def resolved(
    body: ResponsesRequest, context: RequestContext, recent: Mapping[str, Sequence[Raw]] = MappingProxyType({})
) -> ResponsesRequest:
    """The body with the items that it refers to: those of earlier responses, and those named by their id. `recent`: the
    items of responses that need not be looked up, with all before them. Raises InvalidRequest, naming what is missing
    or too much, BodiesFull, and StoreUnresponsive."""
    budget, documents = LookupBudget(), context.services.documents
    owner = context.document_owner(body.cache_salt)
    earlier: list[Raw] = []
    if (previous := body.previous_response_id) is not None and previous in recent:
        earlier += recent[previous]
    elif previous is not None:
        turns = await stored.chain(documents, owner, previous, budget)
        earlier = [item for turn in turns.values() for item in turn.items]
    references = await context.run(_references, body.input)
    if not earlier and not references:
        return body
    found = await stored.find_items(documents, owner, {f"input[{at}].id": id for at, id in references.items()}, budget)
    for at, id in references.items():
        if id not in found:
            raise InvalidRequest(f"Item with id '{id[:100]}' not found.", param=f"input[{at}].id")
    context.hold(budget.num_bytes)
    items = body.input
    if not isinstance(items, str):
        items = [found[references[at]] if at in references else item for at, item in enumerate(items)]
    return with_fields(body, input=items, earlier=earlier)


def _references(items: str | Sequence[Raw]) -> dict[int, str]:
    """The ids of those items that are references, by place. Raises InvalidRequest."""
    found: dict[int, str] = {}
    for at, raw in enumerate(() if isinstance(items, str) else items):
        if kind_of(raw, f"input[{at}]") is ItemReference:
            found[at] = decoded(raw, ItemReference, f"input[{at}]").id
    if len(found) > MAX_REFERENCES:
        raise InvalidRequest(f"input: more than {MAX_REFERENCES} references to items", param="input")
    return found


def chat_prompt(body: ResponsesRequest, seal: Seal = NO_SEAL) -> ChatPrompt:
    """Raises InvalidRequest for what the body asks for and is not supported, and for compactions that `seal` does not
    open."""
    refuse_unsupported(body)
    instructions = [ChatMessage(Role.SYSTEM, body.instructions)] if body.instructions else []
    made = raw_items(body.made)
    items = [*body.own_items, *made] if made else body.input
    messages, tools = (*instructions, *conversation(items, body.earlier_items, seal)), body.tool_table
    is_on = None if body.effort is None else body.effort != "none"
    kwargs = thinking_kwargs(is_on, body.effort if is_on else None)
    choice = _tool_choice(body, tools)
    choice = replace(choice, names=tuple(map(tools.template_name, choice.names)))
    if body.is_compaction:
        choice = ToolChoice(CallMode.NONE)
    elif body.servers and body.offered is None:
        choice = ToolChoice()  # what it names may not be listed yet
    return ChatPrompt(messages, tools.specs, kwargs, choice)


class _ServerChoice(Struct):
    server_label: str
    name: str | None = None


def _tool_choice(body: ResponsesRequest, tools: Tools) -> ToolChoice:
    """Raises InvalidRequest."""
    choice, one_call = body.tool_choice, body.parallel_tool_calls is False
    if not isinstance(choice, dict) or choice.get("type") != MCP:
        return openai_tool_choice(choice, one_call=one_call)
    wanted = converted(choice, _ServerChoice, "tool_choice")
    names, is_listed = tools.server_tools(wanted.server_label, wanted.name), body.offered is not None
    is_offered = bool(names) or (not is_listed and wanted.server_label in body.servers)
    require(is_offered, "tool_choice", "names a server or a tool that 'tools' does not offer")
    return ToolChoice(CallMode.REQUIRED, names, one_call)
