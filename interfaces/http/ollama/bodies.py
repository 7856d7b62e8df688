"""The bodies of POST /api/chat and POST /api/generate. Fields that nobody knows are ignored."""

from typing import Annotated, Any

from msgspec import Struct

from interfaces.http.fields.parameters import ignored, mapped, refused, supported
from interfaces.http.ollama.options import Options


class CalledFunction(Struct):
    name: str
    arguments: dict[str, Any] = {}


class CalledTool(Struct):
    function: CalledFunction
    id: str = ""


class Message(Struct):
    """One of the conversation. `tool_name` or `tool_call_id`: whose result it is."""

    role: str
    content: str = ""
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolFunction(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct):
    function: ToolFunction
    type: str = "function"


class AnswerFields(Struct, kw_only=True):
    """What both have; null and absent mean the same."""

    model: Annotated[
        str | None, supported("a `:latest` at its end is left out; without it, the default model answers")
    ] = None
    stream: Annotated[bool | None, supported("true by default: a JSON object a line (`application/x-ndjson`)")] = None
    format: Annotated[str | dict[str, Any] | None, supported("`json` or a JSON schema: the answer is held to it")] = (
        None
    )
    options: Annotated[Options | None, mapped("see below")] = None
    think: Annotated[
        bool | str | None,
        mapped("true, false, `low`, `medium` or `high`, as far as the model's template knows it"),
    ] = None
    keep_alive: Annotated[Any, ignored("models stay loaded until another needs the room")] = None
    logprobs: Annotated[bool | None, refused("log probabilities are in OpenAI's dialect", False)] = None
    top_logprobs: Annotated[int | None, refused("log probabilities are in OpenAI's dialect", 0)] = None
    truncate: Annotated[Any, ignored("what does not fit is refused")] = None
    shift: Annotated[Any, ignored("what does not fit is refused")] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    store: Annotated[
        bool | None, supported("Cairn's own: false keeps what is computed for this request out of the store")
    ] = None


class ChatRequest(AnswerFields, kw_only=True):
    """The body of POST /api/chat."""

    messages: Annotated[
        list[Message],
        supported("roles `system`, `user`, `assistant` and `tool` anywhere, in place; `images` are refused"),
    ]
    tools: Annotated[list[Tool] | None, supported("functions")] = None


class GenerateRequest(AnswerFields, kw_only=True):
    """The body of POST /api/generate."""

    prompt: Annotated[str | None, supported("a user's message, unless `raw`")] = None
    system: Annotated[str | None, supported("a system message before it; not with `raw`")] = None
    raw: Annotated[bool | None, supported("the prompt goes to the model without its template")] = None
    suffix: Annotated[str | None, refused("nothing is filled in", "")] = None
    template: Annotated[str | None, refused("the template is the model's", "")] = None
    context: Annotated[list[int] | None, refused("conversations are in `/api/chat`", [])] = None
    images: Annotated[list[Any] | None, refused("models read text only", [])] = None
