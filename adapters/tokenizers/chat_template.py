"""A model's chat template: messages to the text of a prompt, or TemplateFailed with what it refused.

Messages are rendered as they are. Only when the template refuses them are adjustments tried that keep what was said:
arguments of tool calls as text, consecutive messages of one role merged, tool call ids shortened, system messages after
the first turn told as a user's. A template that takes plain content without complaint and drops it is given the same
content as a list of text parts.

System messages stay in their place. Some templates drop those after the first without complaint, or move them all to
the beginning, so that an agent's reminder at the end would change the beginning of its prompt: a probe tells which.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapters.tokenizers.template_messages import (
    Adjustments,
    TemplateTraits,
    has_late_system,
    has_runs,
    messages_for_template,
    tools_for_template,
)
from adapters.tokenizers.verbatim_arguments import has_stand_in, without_stand_ins
from application.ports.tokenizer import TemplateFeatures
from domain.chat import ChatMessage, Json, Role, ToolSpec
from domain.errors import TemplateFailed
from domain.request import ChatPrompt

RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Template arguments that Cairn sets itself: a client's would change what is rendered behind its back."""

_TAIL_CHARS, _NUM_TAILS = 1024, 4

_END_MARK = "CairnGoesOnHere"
"""Letters, so that no template trims or escapes it."""

_PROBES = ("zebra", "yacht", "xenon", "willow")
_LATE_SYSTEM = (Role.SYSTEM, Role.USER, Role.SYSTEM, Role.USER)
_TWO_SYSTEMS = (Role.SYSTEM, Role.SYSTEM, Role.USER)

_REASONING_FIELDS = {
    "reasoning_content": re.compile(r"\breasoning_content\b"),
    "reasoning": re.compile(r"""(\.|['"])reasoning\b(?!_)"""),
    "thinking": re.compile(r"""\.thinking\b|['"]thinking['"]\s*(\]|in )"""),
}


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """`adjustments`: how the messages had to be changed; renderings of the same `prompt` with other turns use the
    same."""

    text: str
    adjustments: Adjustments
    prompt: ChatPrompt


class ChatTemplate:
    """`apply(conversation, tools=..., add_generation_prompt=..., **kwargs)` renders; `source` is read for traits."""

    def __init__(self, apply: Callable[..., str], source: str) -> None:
        self._apply = apply
        fields = tuple(name for name, pattern in _REASONING_FIELDS.items() if pattern.search(source))
        traits = TemplateTraits("developer" in source, fields or ("reasoning_content",))
        late_system = _places(apply, traits, _LATE_SYSTEM)
        self._traits = replace(
            traits,
            displaces_late_system=_are_displaced(late_system),
            drops_second_system=_are_displaced(_places(apply, traits, _TWO_SYSTEMS)),
        )
        self.features = TemplateFeatures(
            tools=_shows_tools(apply),
            reasoning=bool(fields) or "thinking" in source,
            late_system=bool(late_system) and not _are_displaced(late_system),
        )

    def render(self, prompt: ChatPrompt) -> RenderedChat:
        """With the generation prompt, or up to the end of the content that is continued. Raises TemplateFailed, naming
        the message or argument that was refused."""
        _check_kwargs(prompt.template_kwargs)
        if not prompt.continues:
            return self._rendered(prompt)
        *earlier, last = prompt.messages
        marked = replace(last, content=last.content + _END_MARK)
        rendered = self._rendered(replace(prompt, messages=(*earlier, marked)))
        text, found, _ = rendered.text.rpartition(_END_MARK)
        if not found:
            raise TemplateFailed(
                "the model's chat template does not show the last message, so that it cannot be continued",
                param=f"messages[{len(earlier)}]",
            )
        return replace(rendered, text=text)

    def _rendered(self, prompt: ChatPrompt) -> RenderedChat:
        refusal: Exception | None = None
        for adjustments in self._worth_trying(prompt.messages):
            try:
                text = self._text_of(prompt, prompt.messages, adjustments)
            except Exception as error:
                refusal = refusal or error
                continue
            return self._with_content_kept(RenderedChat(text, adjustments, prompt))
        assert refusal is not None
        raise self._failure(prompt, refusal) from refusal

    def text_beside(self, rendered: RenderedChat, messages: Sequence[ChatMessage]) -> str:
        """Render other messages with the prompt's tools and arguments. Raises whatever the template does."""
        return self._text_of(rendered.prompt, messages, rendered.adjustments)

    def _text_of(self, prompt: ChatPrompt, messages: Sequence[ChatMessage], adjustments: Adjustments) -> str:
        text = self._applied(prompt, messages, adjustments)
        if not has_stand_in(text):  # nobody else knows what they are called
            return text
        text = without_stand_ins(text)
        if not has_stand_in(text):
            return text
        self._traits = replace(self._traits, reads_arguments=True)
        return self._applied(prompt, messages, adjustments)

    def _applied(self, prompt: ChatPrompt, messages: Sequence[ChatMessage], adjustments: Adjustments) -> str:
        return self._apply(
            messages_for_template(messages, self._traits, adjustments),
            tools=tools_for_template(prompt.tools),
            add_generation_prompt=not prompt.continues,
            **prompt.template_kwargs,
        )

    def _worth_trying(self, messages: Sequence[ChatMessage]) -> list[Adjustments]:
        """Every combination that would change these messages, fewest changes first."""
        has_calls = any(message.tool_calls for message in messages)
        possible = (has_calls, has_runs(messages), has_calls, has_late_system(messages))
        choices = itertools.product(*([False, True] if is_possible else [False] for is_possible in possible))
        return [Adjustments(*choice) for choice in sorted(choices, key=sum)]

    def _with_content_kept(self, rendered: RenderedChat) -> RenderedChat:
        messages = rendered.prompt.messages
        last = next((text for message in reversed(messages) if (text := message.content.strip())), "")
        if _holds(rendered.text, last):
            return rendered
        adjustments = replace(rendered.adjustments, text_parts=True)
        try:
            text = self._text_of(rendered.prompt, messages, adjustments)
        except Exception:  # the first rendering stands: the template may only have escaped or shortened the text
            return rendered
        return replace(rendered, text=text, adjustments=adjustments) if _holds(text, last) else rendered

    def _failure(self, prompt: ChatPrompt, refusal: Exception) -> TemplateFailed:
        reason = _reason(refusal)
        at = self._first_refused(prompt, reason)
        roles = [message.role.value for message in prompt.messages]
        shown = roles if len(roles) <= 12 else [*roles[:6], "...", *roles[-5:]]
        return TemplateFailed(
            f"the model's chat template refused messages[{at}] (role {roles[at]}; roles in order: {', '.join(shown)}):"
            f" {reason}",
            param="messages",
        )

    def _first_refused(self, prompt: ChatPrompt, reason: str) -> int:
        """Index of the message whose arrival brings the refusal about, by bisection."""
        low, high = 1, len(prompt.messages)
        while low < high:
            middle = (low + high) // 2
            if self._refusal(prompt, prompt.messages[:middle]) == reason:
                high = middle
            else:
                low = middle + 1
        return low - 1

    def _refusal(self, prompt: ChatPrompt, messages: Sequence[ChatMessage]) -> str | None:
        try:
            self._text_of(prompt, messages, Adjustments())
        except Exception as error:
            return _reason(error)
        return None


def _places(apply: Callable[..., str], traits: TemplateTraits, roles: Sequence[Role]) -> list[int]:
    """Where messages of these roles come out, -1 for one that does not; nothing if the template refuses them, which is
    adjusted when it happens, or shows none."""
    messages = [ChatMessage(role, probe) for role, probe in zip(roles, _PROBES, strict=False)]
    try:
        text = apply(messages_for_template(messages, traits, Adjustments()), tools=None, add_generation_prompt=True)
    except Exception:
        return []
    places = [text.find(message.content) for message in messages]
    return places if max(places) >= 0 else []


def _are_displaced(places: Sequence[int]) -> bool:
    return any(place < 0 for place in places) or list(places) != sorted(places)


def _shows_tools(apply: Callable[..., str]) -> bool:
    messages = [{"role": Role.USER.value, "content": _PROBES[0]}]
    try:
        text = apply(messages, tools=tools_for_template([ToolSpec(_PROBES[1])]), add_generation_prompt=True)
    except Exception:
        return False
    return _PROBES[1] in text


def _check_kwargs(kwargs: Mapping[str, Json]) -> None:
    for name in kwargs:
        if name in RESERVED_KWARGS or not name.isidentifier():
            raise TemplateFailed(f"{name!r} cannot be set as a template argument", param="chat_template_kwargs")


def _reason(error: Exception) -> str:
    """A refusal raised by the template is a sentence; any other error needs its kind to be understood."""
    text = str(error).strip() or "no reason given"
    is_raised_by_template = type(error).__name__ == "TemplateError"
    return text if is_raised_by_template else f"{type(error).__name__}: {text}"


def _holds(text: str, content: str) -> bool:
    """Whether the content is in the text, looked for by its end first: searching for 16 MiB takes 50 to 140 ms."""
    tail, before = content[-_TAIL_CHARS:], len(text)
    for _ in range(_NUM_TAILS):
        at = text.rfind(tail, 0, before)
        if at < 0:
            return False
        end = at + len(tail)
        if end >= len(content) and text.startswith(content, end - len(content)):
            return True
        before = end - 1
    return content in text


def template_source(template: Any) -> str:
    """All the text of a template, or of a mapping of named ones."""
    if isinstance(template, Mapping):
        return "\n".join(str(text) for text in template.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return template if isinstance(template, str) else ""


__all__ = ("RESERVED_KWARGS", "ChatTemplate", "RenderedChat", "template_source")
