"""Request fields that mean the same in several dialects, and their conversion into a request.

Service tiers that clients pay for elsewhere (`priority`, `fast`, ...) are an ordinary request here; there are new ones
every year, so an unknown one is no error.

Documents and sound are refused by name in a conversation that has no answer yet, where a refusal costs nothing. Later a
client cannot take them back (agents keep a turn that failed, so a refusal would end the session), and where a tool
returned them it never could: the model reads that something was left out. Images: see `prompt_images`.

`tool_choice` as chat completions and responses write it:

    "auto", "none", "required"
    {"type": "function", "function": {"name"}}       or with `name` beside `type`; `custom` likewise
    {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}      or with both beside `type`
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn, Protocol

from msgspec import Struct, field
from msgspec.structs import asdict

from domain.errors import InvalidRequest, require
from domain.printable import printable
from domain.priority import Priority
from domain.request.chat import CallMode, Json, ToolChoice, named_tool
from domain.request.media import left_out
from domain.request.repetition import RepetitionDetection
from domain.request.request import THINKING_SWITCHES, GenerationRequest, Prompt
from domain.request.sampling import MAX_LOGIT_BIAS, SamplingParams, StopRules
from interfaces.http.errors import renamed
from interfaces.http.fields.parameters import mapped, supported, without_effect
from interfaces.http.incoming.json_body import converted
from interfaces.http.incoming.request_context import RequestContext

_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Templates know three efforts."""


class RepetitionFields(Struct):
    """vLLM's fields, and `min_tokens`, the least length of all copies together. Null and absent mean the default."""

    max_pattern_size: int | None = None
    min_pattern_size: int | None = None
    min_count: int | None = None
    min_tokens: int | None = None

    def detection(self) -> RepetitionDetection:
        """Raises InvalidRequest."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        with renamed({name: f"repetition_detection.{name}" for name in self.__struct_fields__}):
            return RepetitionDetection(**given)


class SamplingFields(Struct, kw_only=True):
    """The sampling fields of a body. Null and absent mean the same for every field; ranges are checked by the
    domain."""

    model: Annotated[str | None, supported("without it, the default model answers")] = None
    stream: Annotated[bool | None, supported("server-sent events")] = None
    min_tokens: Annotated[int | None, supported("holds back every token that would end the answer")] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default, or what is set for the model")] = None
    top_p: Annotated[float | None, supported("0 to 1; 0 is the most likely token")] = None
    top_k: Annotated[int | None, supported("0 and -1 are off")] = None
    min_p: Annotated[float | None, supported("0 to 1")] = None
    repetition_penalty: Annotated[float | None, supported("1 is off")] = None
    presence_penalty: Annotated[float | None, supported("0 is off")] = None
    frequency_penalty: Annotated[float | None, supported("0 is off")] = None
    logit_bias: Annotated[dict[str, float] | None, supported("token id to -100..100")] = None
    seed: Annotated[
        int | None, supported("the randomness of the answer; choice *i* is drawn with `seed + i`; -1 is random")
    ] = None
    ignore_eos: Annotated[bool | None, supported("an answer does not end by itself")] = None
    stop_token_ids: Annotated[
        list[int] | None, supported("tokens that end the answer and are not in its text; up to 1,024")
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, supported("all others are never chosen, also not those that end an answer; up to 1,024")
    ] = None
    repetition_detection: Annotated[
        RepetitionFields | None,
        mapped(
            "an answer that repeats itself ends, with the reason `length`; `min_tokens` (512) is Cairn's own, see"
            " [http-api.md](../http-api.md)"
        ),
    ] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    speculation: Annotated[bool | None, supported("Cairn's own: false drafts no tokens; the answer is the same")] = None

    def sampling(self, num_logprobs: int | None = None) -> SamplingParams:
        """Raises InvalidRequest."""
        return SamplingParams.chosen(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=0 if self.top_k == -1 else self.top_k,  # -1 is how vLLM's clients say off
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=_logit_bias(self.logit_bias or {}),
            seed=self.seed,
            num_logprobs=num_logprobs,
            allowed_token_ids=frozenset(self.allowed_token_ids) if self.allowed_token_ids else None,
        )

    def stop_rules(self, max_tokens: int | None, stop: Sequence[str] = ()) -> StopRules:
        """Raises InvalidRequest."""
        wanted = self.repetition_detection
        return StopRules(
            length_limit(max_tokens),
            self.min_tokens or 0,
            tuple(stop),
            bool(self.ignore_eos),
            frozenset(self.stop_token_ids or ()),
            repetition=None if wanted is None else wanted.detection(),
        )


def length_limit(max_tokens: int | None) -> int | None:
    """Returns the most tokens of an answer; None for no limit, which clients write as -1 as well."""
    return None if max_tokens == -1 else max_tokens


class CommonFields(Protocol):
    """The fields that the bodies of all dialects have."""

    @property
    def model(self) -> str | None: ...
    @property
    def cache_salt(self) -> str | None: ...


def new_request(
    body: CommonFields, context: RequestContext, prefix: str, prompt: Prompt, **fields: Any
) -> GenerationRequest:
    """Returns the request of a body. `prefix`: of its id. `fields`: those of GenerationRequest that only its dialect
    knows. Raises InvalidRequest."""
    context.ignored = without_effect(body)
    common: dict[str, Any] = {
        "model": body.model or context.services.default_model,
        "cache_salt": body.cache_salt or "",
        "trace_carrier": context.services.trace_context(),
        "speculates": getattr(body, "speculation", None) is not False,
        "arrived_ns": context.arrived_ns,
    }
    return GenerationRequest(id=context.services.ids.request_id(prefix), prompt=prompt, **{**common, **fields})


def _logit_bias(biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    require(len(biases) <= MAX_LOGIT_BIAS, "logit_bias", f"has more than {MAX_LOGIT_BIAS} entries")
    return tuple((_token_id(key), bias) for key, bias in biases.items())


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise InvalidRequest(f"logit_bias key {key[:40]!r} is not a token id", param="logit_bias")
    return int(key)


def thinking_kwargs(is_on: bool | None, effort: str | None) -> dict[str, Json]:
    """Returns the arguments of a chat template that switch reasoning and set its effort; a template that knows neither
    ignores both. `is_on` None leaves it to the model. An unknown effort is passed on as it is."""
    kwargs: dict[str, Json] = {} if is_on is None else dict.fromkeys(THINKING_SWITCHES, is_on)
    if effort is not None:
        kwargs["reasoning_effort"] = _EFFORTS.get(effort, effort)
    return kwargs


def tier_priority(tier: str | None) -> Priority:
    """The priority of a service tier; `flex` is OpenAI's name for requests that may wait, `batch` Anthropic's."""
    return Priority.BATCH if tier in ("flex", "batch") else Priority.INTERACTIVE


def openai_tier(priority: Priority) -> str:
    """The tier that a request was served in, which its key may have lowered."""
    return "flex" if priority is Priority.BATCH else "default"


def media_note(what: str, path: str, *, is_refused: bool) -> str:
    """The text that the model reads instead of media. `what`: singular, as "audio". Raises InvalidRequest if
    `is_refused`."""
    if is_refused:
        message = f"{path}: {what} input is not supported, only text, and images and files in the request"
        raise InvalidRequest(message, param=path)
    return left_out(what)


_MODES = {mode.value: mode for mode in CallMode}


class _Name(Struct):
    name: str


class _Tool(Struct):
    type: str = ""
    name: str | None = None
    function: _Name | None = None
    custom: _Name | None = None

    def named(self) -> str:
        inner = self.function or self.custom
        name = self.name if inner is None else inner.name
        if name is None:
            raise InvalidRequest("tool_choice must name a tool", param="tool_choice")
        return name


class _Allowed(Struct):
    mode: str = "auto"
    tools: list[_Tool] = field(default_factory=list[_Tool])


class _Choice(_Tool):
    mode: str = "auto"
    tools: list[_Tool] = field(default_factory=list[_Tool])
    allowed_tools: _Allowed | None = None


def openai_tool_choice(choice: str | Mapping[str, Any] | None, *, one_call: bool) -> ToolChoice:
    """The domain's tool choice. `one_call`: the client takes no parallel calls. Raises InvalidRequest."""
    if choice is None or isinstance(choice, str):
        return ToolChoice(_mode(choice or "auto"), one_call=one_call)
    wire = converted(choice, _Choice, "tool_choice")
    if wire.type in ("function", "custom"):
        return named_tool(wire.named())
    if wire.type != "allowed_tools":
        _refuse(wire.type)
    allowed = wire.allowed_tools or wire
    if not allowed.tools:
        raise InvalidRequest("tool_choice allows no tools; use none", param="tool_choice")
    return ToolChoice(_mode(allowed.mode), tuple(tool.named() for tool in allowed.tools), one_call)


def _mode(name: str) -> CallMode:
    return _MODES[name] if name in _MODES else _refuse(name)


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(
        f"tool_choice {printable(what)!r} is not supported; use auto, none, required, a function or allowed_tools",
        param="tool_choice",
    )
