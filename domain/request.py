"""What a client asked for, after its dialect was translated away, and what it is told at the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from domain.chat import ChatMessage, Json, ToolSpec
from domain.errors import InvalidRequest
from domain.ids import ModelId, RequestId
from domain.sampling import SamplingParams, StopRules


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, with the template's own keyword arguments."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    template_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])

    def __post_init__(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, encoded without a chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as the client sent them; checked against the vocabulary before they reach the engine."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and `num_choices` completions of it. A dialect's list of prompts becomes several of these.

    `cache_salt` separates tenants: prefixes are shared only between equal salts. `trace_carrier` holds W3C trace
    context headers, so that work on the compute thread joins the request's trace. `persist` False: what is computed for
    this request may be kept in memory, and is never written to the store. `client`: the name of the key it came with,
    empty for none.
    """

    id: RequestId
    model: ModelId
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    stop: StopRules = StopRules()
    cache_salt: str = ""
    trace_carrier: Mapping[str, str] = field(default_factory=dict[str, str])
    persist: bool = True
    num_choices: int = 1
    client: str = ""


class FinishReason(Enum):
    """Why a completion ended. STOP: end-of-sequence token or stop string. LENGTH: max_tokens or context. TOOL_CALLS: as
    STOP, and the answer asks for tools."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. Prompt tokens = computed + reused; reused = from the hot tier + from the store."""

    prompt_tokens: int
    completion_tokens: int
    reused_hot_tokens: int = 0
    reused_store_tokens: int = 0

    @property
    def reused_tokens(self) -> int:
        return self.reused_hot_tokens + self.reused_store_tokens

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.reused_tokens


__all__ = ("ChatPrompt", "FinishReason", "GenerationRequest", "Prompt", "TextPrompt", "TokenPrompt", "Usage")
