"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens.

Fields that nobody knows, and betas, are ignored. `parameters` reads the declarations.
"""

from typing import Annotated, Any

from msgspec import Struct

from interfaces.http.anthropic.blocks import Content
from interfaces.http.anthropic.conversation import MessageParam
from interfaces.http.anthropic.tools import ToolChoiceParam
from interfaces.http.fields.parameters import ignored, mapped, refused, supported


class Thinking(Struct):
    type: str
    budget_tokens: int | None = None


class OutputConfig(Struct):
    effort: str | None = None
    format: dict[str, Any] | None = None


class PromptFields(Struct, kw_only=True):
    """What makes the prompt; null and absent mean the same."""

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
            "those with an `input_schema`, `strict` or not; tools that the server would run (`web_search_*`, ...)"
            " become nothing"
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
            "`disabled` and absent ask the model's template for no reasoning, every other type for it;"
            " after `budget_tokens` the reasoning is ended, where the model has tokens for that"
        ),
    ] = None
    output_config: Annotated[
        OutputConfig | None,
        mapped("`effort` goes to the model's template as `low`, `medium` or `high`; `format` is a `json_schema`"),
    ] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    store: Annotated[
        bool | None, supported("Cairn's own: false keeps what is computed for this request out of the store")
    ] = None
    mcp_servers: Annotated[list[Any] | None, refused("the server calls nobody", [])] = None
    cache_control: Annotated[Any, ignored("every prompt is cached, wherever it is marked")] = None
    context_management: Annotated[Any, ignored("nothing is taken out of the conversation")] = None


class MessagesRequest(PromptFields, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: Annotated[
        int | None, supported("an upper bound; without it, or with less room, the context is the bound")
    ] = None
    stream: Annotated[bool | None, supported("server-sent events, each with its `event:` line")] = None
    stop_sequences: Annotated[list[str] | None, supported("up to 16")] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default")] = None
    top_p: Annotated[float | None, supported("above 0, at most 1")] = None
    top_k: Annotated[int | None, supported("0 is off")] = None
    service_tier: Annotated[
        str | None, mapped("Cairn's own `batch`: others go first; `usage` tells the tier, `batch` or `standard`")
    ] = None
    metadata: Annotated[Any, ignored("it stays out of the prompt")] = None
    container: Annotated[Any, ignored("there are none")] = None


class CountTokensRequest(PromptFields, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""
