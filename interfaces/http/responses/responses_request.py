"""The body of POST /v1/responses.

Fields that nobody knows are ignored. `parameters` reads the declarations.
"""

from typing import Annotated, Any

from msgspec import Raw, Struct

from interfaces.http.fields.parameters import ignored, mapped, refused, supported


class Reasoning(Struct):
    effort: str | None = None
    summary: str | None = None


class TextConfig(Struct):
    format: dict[str, Any] | None = None


class ResponsesRequest(Struct, kw_only=True):
    """Null and absent mean the same for every field."""

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
            "`function`; `custom` as a function with an `input`; `namespace` as its functions; all others, which the"
            " server would run, become nothing"
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
        bool | None, mapped("false: one call, where the model's form of calls can be told from text")
    ] = None
    max_output_tokens: Annotated[
        int | None, supported("an upper bound; without it, or with less room, the context is the bound")
    ] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default")] = None
    top_p: Annotated[float | None, supported("above 0, at most 1")] = None
    reasoning: Annotated[
        Reasoning | None,
        mapped(
            "`effort` goes to the model's template as `low`, `medium` or `high`, and `none` as no reasoning, which is"
            " ended where a model begins it all the same; with a `summary`, the reasoning itself comes as the summary"
        ),
    ] = None
    text: Annotated[
        TextConfig | None, mapped("`format`: `text`, `json_object`, `json_schema`; `verbosity` is ignored")
    ] = None
    include: Annotated[
        list[str] | None,
        mapped("`reasoning.encrypted_content` gives reasoning items a handle; others add nothing"),
    ] = None
    store: Annotated[
        bool | None,
        supported(
            "true by default: input and answer are kept, for GET and `previous_response_id`; what is computed is kept"
            " in the prefix cache either way, and what is remembered of tool calls in memory alone where it is false"
        ),
    ] = None
    service_tier: Annotated[
        str | None, mapped("`flex`: others go first; the answer tells the tier it was served in, `flex` or `default`")
    ] = None
    metadata: Annotated[dict[str, str] | None, supported("told again in the answer; it stays out of the prompt")] = None
    seed: Annotated[int | None, supported("Cairn's own: the randomness of the answer")] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    previous_response_id: Annotated[
        str | None, supported("the items of that response, and of all before it, come before the input")
    ] = None
    conversation: Annotated[Any, refused("conversations are not stored")] = None
    prompt: Annotated[Any, refused("there are no stored prompts")] = None
    background: Annotated[bool | None, refused("nothing runs without a client", False)] = None
    top_logprobs: Annotated[int | None, refused("log probabilities are in chat completions", 0)] = None
    truncation: Annotated[Any, ignored("what does not fit is refused")] = None
    prompt_cache_key: Annotated[str | None, ignored("every prompt is cached, by its content")] = None
    max_tool_calls: Annotated[Any, ignored("it counts tools that the server runs")] = None
    stream_options: Annotated[Any, ignored("nothing is obfuscated")] = None
    context_management: Annotated[Any, ignored("nothing is taken out of the conversation")] = None
    client_metadata: Annotated[Any, ignored("it stays out of the prompt")] = None
    safety_identifier: Annotated[Any, ignored("nobody is told")] = None
    user: Annotated[Any, ignored("nobody is told")] = None
