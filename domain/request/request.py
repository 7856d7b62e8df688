"""A generation request, independent of any dialect's wire format, with the finish reason and usage of its answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import TypeAlias

from domain.errors import InvalidRequest, require
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.models.capability import Capability
from domain.prefix.explanation import Explanation
from domain.printable import printable
from domain.priority import Priority
from domain.request.chat import CallMode, ChatMessage, Json, Role, ToolChoice, ToolSpec
from domain.request.file import MAX_FILES, File
from domain.request.grammar import Grammar
from domain.request.media import MAX_IMAGES, Image
from domain.request.pooling import PooledPrompt
from domain.request.reasoning_budget import ReasoningLimit
from domain.request.sampling import MAX_SEED, MAX_TOP_LOGPROBS, SamplingParams, StopRules

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""The names that templates have for the argument that switches reasoning."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, with the template's own keyword arguments. `tools` are shown to the
    model, `tool_choice` says which of them an answer may call. `continues`: the last message is the beginning of the
    answer, which continues where its content ends."""

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
                "messages: only a last message of the assistant, without tool_calls, can be continued", param="messages"
            )
        offered = {tool.name for tool in self.tools}
        for name in self.tool_choice.names:
            if name not in offered:
                raise InvalidRequest(
                    f"tool_choice names {printable(name)!r}, which is not in tools; add it there", param="tool_choice"
                )
        if self.tool_choice.mode is CallMode.REQUIRED and not offered:
            raise InvalidRequest("tool_choice requires a call, but tools is empty", param="tool_choice")
        for kind, media, most in (("images", self.images, MAX_IMAGES), ("files", self.files, MAX_FILES)):
            if len(media) > most:
                raise InvalidRequest(
                    f"messages hold {len(media)} {kind}, at most {most} are allowed: leave out the oldest",
                    param="messages",
                )

    @property
    def images(self) -> tuple[Image, ...]:
        """All images, in order."""
        return tuple(image for message in self.messages for image in message.images)

    @property
    def files(self) -> tuple[File, ...]:
        """All files, in order; none once their text is in the messages."""
        return tuple(one for message in self.messages for one in message.media if isinstance(one, File))

    @property
    def num_answered(self) -> int:
        """The number of messages up to the last answer, which its client cannot take back."""
        return max((at for at, one in enumerate(self.messages, 1) if one.role is Role.ASSISTANT), default=0)

    @property
    def callable_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that an answer may call."""
        return () if self.tool_choice.mode is CallMode.NONE else self.tools

    @property
    def is_thinking_off(self) -> bool:
        """True if a template argument switches reasoning off."""
        return any(self.template_kwargs.get(name) is False for name in THINKING_SWITCHES)

    @property
    def prefilled(self) -> str:
        """The text with which the answer begins, and which is not streamed again."""
        return self.messages[-1].content if self.continues else ""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, encoded without a chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids as the client sent them; checked against the vocabulary before they reach the engine."""

    token_ids: IdRow


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt | PooledPrompt


class RequestKind(Enum):
    """The kind of a request, by the names of OpenTelemetry; `rerank` is not one of them."""

    CHAT = "chat"
    TEXT = "text_completion"
    EMBEDDINGS = "embeddings"
    SCORES = "rerank"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and `num_choices` completions of it. A dialect's list of prompts becomes several of these, its texts
    for vectors or scores one with a PooledPrompt, which is not completed.

    `cache_salt` separates tenants: prefixes are shared only between equal salts. `trace_carrier` holds W3C trace
    context headers, so that work on the compute thread joins the request's trace. `persist` False: what is computed for
    this request may be kept in memory, and is never written to the store. `keeps_text` False: its text is not stored
    either. Choice i has the id `choice_id(id, i)` and the seed `choice_seed(seed, i)`. `grammar` constrains the answer;
    an answer that ends with STOP and without a stop string is complete. `reasoning` limits a chat's reasoning; None for
    no limit. `client`: the name of its API key, empty for none. `num_prompt_logprobs`: report the log probability of
    each prompt token with this many alternatives (0 to 20), which computes the whole prompt; None for none. Only then
    may `max_tokens` be 0. `speculates`: drafts may be verified. `prediction`: text expected in the answer, to draft
    from; it is no part of the prompt. `operation`: the name of the HTTP operation, for people; empty for none.
    `arrived_ns`: its arrival by the monotonic clock; None for the time at which it is started.
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
    speculates: bool = True
    prediction: str = ""
    operation: str = ""
    arrived_ns: int | None = None

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
                "ignore_eos cannot be combined with a grammar: a complete answer ends; leave one of them out",
                param="ignore_eos",
            )
        if self.grammar is not None and self.sampling.allowed_token_ids is not None:
            raise InvalidRequest(
                "allowed_token_ids cannot be combined with a grammar: both choose the tokens; leave one of them out",
                param="allowed_token_ids",
            )

    @property
    def needs(self) -> Capability:
        own = {RequestKind.EMBEDDINGS: Capability.EMBED, RequestKind.SCORES: Capability.SCORE}
        return own.get(self.kind, Capability.GENERATE)

    @property
    def kind(self) -> RequestKind:
        if isinstance(self.prompt, PooledPrompt):
            return RequestKind.EMBEDDINGS if self.prompt.query is None else RequestKind.SCORES
        return RequestKind.CHAT if isinstance(self.prompt, ChatPrompt) else RequestKind.TEXT


def choice_id(id: RequestId, choice: int) -> RequestId:
    """Returns the request's own id for its first choice, a derived id for any other."""
    return id if choice == 0 else RequestId(f"{id}.{choice}")


def choice_seed(seed: int, choice: int) -> int:
    """Returns the seed plus the choice's number, within 64 bits."""
    return (seed + choice + MAX_SEED + 1) % (2 * (MAX_SEED + 1)) - MAX_SEED - 1


class FinishReason(Enum):
    """The reason for which a completion ended. STOP: end-of-sequence token or stop string. LENGTH: max_tokens,
    context, or repetition. TOOL_CALLS: as STOP, and the answer calls tools."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. Prompt tokens = computed + reused; `image_tokens` of them are images. `reused`: by
    tier, as Explanation has it.
    `proposed`: draft tokens that were verified, by Drafter value; `accepted`: those of them that are in the answer."""

    prompt_tokens: int
    completion_tokens: int
    reused: Mapping[str, int] = field(default_factory=dict[str, int])
    proposed: Mapping[str, int] = field(default_factory=dict[str, int])
    accepted: Mapping[str, int] = field(default_factory=dict[str, int])
    image_tokens: int = 0

    @classmethod
    def of(cls, explanation: Explanation, completion_tokens: int) -> "Usage":
        """Returns the usage of a prompt with this explanation."""
        return cls(explanation.num_prompt, completion_tokens, explanation.reused)

    @property
    def num_proposed(self) -> int:
        """Draft tokens that were verified."""
        return sum(self.proposed.values())

    @property
    def num_accepted(self) -> int:
        """Draft tokens that were accepted."""
        return sum(self.accepted.values())

    @property
    def reused_tokens(self) -> int:
        return sum(self.reused.values())

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.reused_tokens


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Returns the usage of several requests that made one answer."""
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        _summed([usage.reused for usage in usages]),
        _summed([usage.proposed for usage in usages]),
        _summed([usage.accepted for usage in usages]),
        sum(usage.image_tokens for usage in usages),
    )


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)
