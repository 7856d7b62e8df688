"""What a client asked for, after its dialect was translated away, and what it is told at the end."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import TypeAlias

from domain.errors import InvalidRequest, require
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.prefix.explanation import Explanation
from domain.priority import Priority
from domain.request.chat import CallMode, ChatMessage, Json, Role, ToolChoice, ToolSpec
from domain.request.grammar import Grammar
from domain.request.reasoning_budget import ReasoningLimit
from domain.request.sampling import MAX_SEED, MAX_TOP_LOGPROBS, SamplingParams, StopRules
from domain.shown import shown

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the argument that has the model think or not."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, with the template's own keyword arguments. `tools` are those it shows,
    `tool_choice` says what an answer does with them. `continues`: the last message is the beginning of the answer,
    which goes on where its content ends."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    template_kwargs: Mapping[str, Json] = field(default_factory=dict[str, Json])
    tool_choice: ToolChoice = ToolChoice()
    continues: bool = False

    def __post_init__(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        last = self.messages[-1]
        if self.continues and (last.role is not Role.ASSISTANT or last.tool_calls):
            raise InvalidRequest(
                "messages: only a last one of the assistant's that ends with text can be continued", param="messages"
            )
        offered = {tool.name for tool in self.tools}
        for name in self.tool_choice.names:
            if name not in offered:
                raise InvalidRequest(f"tool_choice names {shown(name)!r}, which is not in tools", param="tool_choice")
        if self.tool_choice.mode is CallMode.REQUIRED and not offered:
            raise InvalidRequest("tool_choice asks for a call, and there are no tools", param="tool_choice")

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """Those that an answer may call."""
        return () if self.tool_choice.mode is CallMode.NONE else self.tools

    @property
    def is_thinking_off(self) -> bool:
        """Whether the template is told that the model is not to think."""
        return any(self.template_kwargs.get(name) is False for name in THINKING_SWITCHES)

    @property
    def prefilled(self) -> str:
        """The text with which the answer begins, and which is not told again."""
        return self.messages[-1].content if self.continues else ""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, encoded without a chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as the client sent them; checked against the vocabulary before they reach the engine."""

    token_ids: IdRow


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and `num_choices` completions of it. A dialect's list of prompts becomes several of these.

    `cache_salt` separates tenants: prefixes are shared only between equal salts. `trace_carrier` holds W3C trace
    context headers, so that work on the compute thread joins the request's trace. `persist` False: what is computed for
    this request may be kept in memory, and is never written to the store. `keeps_text` False: nor is what it says,
    whether or not its state is. Choice i has the id `choice_id(id, i)` and the seed `choice_seed(seed, i)`. `grammar`:
    what the answer must look like; an answer that ends with STOP and without a stop string is complete. `reasoning`:
    how long a chat's answer may reason; None for as long as it likes. `client`: the name of the key it came with, empty
    for none. `num_prompt_logprobs`: report the log probability of each prompt token with so many alternatives (0 to
    20), which computes the whole prompt; None for none. Only then may `max_tokens` be 0. `priority`: whether others go
    first. `operation`: by which it came, for people; empty for none. `asked_ns`: when it arrived, by the monotonic
    clock; None for when it is started.
    """

    id: RequestId
    model: ModelId
    prompt: Prompt
    _: KW_ONLY
    sampling: SamplingParams = SamplingParams()
    stop: StopRules = StopRules()
    cache_salt: str = ""
    trace_carrier: Mapping[str, str] = field(default_factory=dict[str, str])
    persist: bool = True
    keeps_text: bool = True
    num_choices: int = 1
    grammar: Grammar | None = None
    reasoning: ReasoningLimit | None = None
    client: str = ""
    num_prompt_logprobs: int | None = None
    priority: Priority = Priority.INTERACTIVE
    operation: str = ""
    asked_ns: int | None = None

    def __post_init__(self) -> None:
        num_tops = self.num_prompt_logprobs
        require(
            num_tops is None or 0 <= num_tops <= MAX_TOP_LOGPROBS,
            "prompt_logprobs",
            f"must be in 0..{MAX_TOP_LOGPROBS}",
        )
        require(num_tops is not None or self.stop.max_tokens != 0, "max_tokens", "must be at least 1")
        if self.grammar is not None and self.stop.ignore_eos:
            raise InvalidRequest(
                "ignore_eos and a grammar exclude each other: a complete answer ends", param="ignore_eos"
            )


def choice_id(id: RequestId, choice: int) -> RequestId:
    """The request's own id for its first choice, ids derived from it for the others."""
    return id if choice == 0 else RequestId(f"{id}.{choice}")


def choice_seed(seed: int, choice: int) -> int:
    """The seed plus the choice's number, within 64 bits."""
    return (seed + choice + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - MAX_SEED - 1


class FinishReason(Enum):
    """Why a completion ended. STOP: end-of-sequence token or stop string. LENGTH: max_tokens or context. TOOL_CALLS: as
    STOP, and the answer asks for tools."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. Prompt tokens = computed + reused. `reused`: by tier, as Explanation has it."""

    prompt_tokens: int
    completion_tokens: int
    reused: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, told: Explanation, completion_tokens: int) -> "Usage":
        """What a prompt with this explanation has cost."""
        return cls(told.num_prompt, completion_tokens, told.reused)

    @property
    def reused_tokens(self) -> int:
        return sum(self.reused.values())

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.reused_tokens
