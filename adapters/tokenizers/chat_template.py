"""A model's chat template: messages to the text of a prompt, or TemplateFailed with the message it refused.

Messages are rendered as they are. Only when the template refuses them are adjustments tried that keep their content:
arguments of tool calls as text, consecutive messages of one role merged, tool call ids shortened, system messages after
the first turn as a user's. A template that accepts plain content and drops it is given the same content as a list of
text parts.

System messages stay in their place. Some templates silently drop those after the first, or move them all to the
beginning, so that an agent's reminder at the end would change the beginning of its prompt: a probe finds those.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from adapters.tokenizers.control_tokens import ContentMarks, ControlTokens, Skeleton, strings_of
from adapters.tokenizers.jinja_template import RenderingTooLong
from adapters.tokenizers.template_images import STAND_IN, ImageForm, find_image_form
from adapters.tokenizers.template_messages import (
    REASONING_FIELDS,
    STAND_IN_NAME,
    Adjustments,
    TemplateTraits,
    has_late_system,
    has_runs,
    has_stand_in,
    messages_for_template,
    tools_for_template,
    without_stand_ins,
)
from application.ports.tokenizer import TemplateFeatures
from domain.errors import TemplateFailed
from domain.printable import printable
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from domain.request.request import ChatPrompt

RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_chars",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of transformers' rendering, which no client may set."""

_END_MARK = "CairnGoesOnHere"
"""Letters, so that no template trims or escapes it."""

_PROBES = ("zebra", "yacht", "xenon", "willow")
_TOOL = ToolSpec(_PROBES[1])
_LATE_SYSTEM = (Role.SYSTEM, Role.USER, Role.SYSTEM, Role.USER)
_TWO_SYSTEMS = (Role.SYSTEM, Role.SYSTEM, Role.USER)

_NO_SYSTEM = "its chat template has no system role: a system prompt is put before the first message of the user"

MAX_ARGUMENT_CHARS = 2**16
"""The most characters of a request's template arguments: templates write them once, or once a message."""

_NODE_CHARS = 2
"""Characters counted for each value beside its text."""

MAX_REPEATED_CHARS = 2**26
"""The most characters of the arguments times the number of messages."""


@dataclass(frozen=True, slots=True)
class _Setting:
    """The common setting of all renderings of one prompt. `marks`: None where its text makes no control token.
    `images`: None without images."""

    prompt: ChatPrompt
    max_chars: int | None
    marks: ContentMarks | None
    images: ImageForm | None


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A prompt's text. `adjustments` of the messages and `setting` are the same for renderings with other turns.
    `controls` encodes the text; None: the tokenizer itself does."""

    text: str
    adjustments: Adjustments
    setting: _Setting

    @property
    def controls(self) -> ControlTokens | None:
        return None if self.setting.marks is None else self.setting.marks.controls


class ChatTemplate:
    """`apply(conversation, tools=..., add_generation_prompt=..., **kwargs)` renders; `source` is read for traits."""

    def __init__(self, apply: Callable[..., str], source: str, reserved: Collection[str] = ()) -> None:
        """`reserved`: names that template arguments may not replace, beside RESERVED_KWARGS."""
        self._apply = apply
        self._source = source
        self._reserved = RESERVED_KWARGS.union(reserved)
        self._controls: ControlTokens | None = None
        self._image_form = cache(partial(find_image_form, self._of_user))
        traits = TemplateTraits("developer" in source)
        traits = replace(traits, lacks_system=_lacks_system(apply, traits))
        late_system = _places(apply, traits, _LATE_SYSTEM)
        self._traits = replace(
            traits,
            displaces_late_system=_are_displaced(late_system),
            drops_second_system=_are_displaced(_places(apply, traits, _TWO_SYSTEMS)),
        )
        self.note = _NO_SYSTEM if traits.lacks_system else ""
        self.features = TemplateFeatures(
            tools=_shows_tools(apply),
            reasoning=any(name in source for name in REASONING_FIELDS),
            late_system=bool(late_system) and not _are_displaced(late_system),
            source=source,
        )

    @property
    def written(self) -> str:
        """The template's source, and its text around messages of every role."""
        return self._source + _around_each_role(self._apply)

    def behind_answer(self) -> str:
        """The text that ends a conversation behind an answer; empty where the template refuses the probe."""
        chat = [ChatMessage(Role.USER, _PROBES[0]), ChatMessage(Role.ASSISTANT, _PROBES[1])]
        shaped = messages_for_template(chat, self._traits, Adjustments())
        _, _, behind = _tried(self._apply, shaped, is_answered=True).rpartition(_PROBES[1])
        return behind

    def separate(self, controls: ControlTokens) -> str:
        """Keeps text of clients from acting as control tokens from now on. Returns the reason where the template
        itself makes control tokens of text; empty if it does not."""
        self._controls = controls
        controls.keep((_END_MARK, STAND_IN, STAND_IN_NAME), self._source)
        return controls.written_for_text(self._source)

    def render(self, prompt: ChatPrompt, max_chars: int | None = None, placeholder: str = "") -> RenderedChat:
        """Render with the generation prompt, or up to the end of the content that is continued. `placeholder`: the text
        of the token that stands for an image; empty without images. Raises TemplateFailed, naming the message or
        argument that was refused, and RenderingTooLong beyond `max_chars`."""
        self._check_kwargs(prompt)
        images = self._image_form(placeholder) if placeholder else None
        *earlier, last = prompt.messages
        ended = replace(prompt, messages=(*earlier, replace(last, content=last.content + _END_MARK)))
        setting = _Setting(ended if prompt.continues else prompt, max_chars, None, images)
        rendered = self._rendered(setting)
        if self._controls is not None and self._makes_control(self._controls, rendered):
            rendered = self._rendered(replace(setting, marks=ContentMarks(self._controls)))
        if not prompt.continues:
            return rendered
        text, found, _ = rendered.text.rpartition(_END_MARK)
        if not found:
            raise TemplateFailed(
                "the last message cannot be continued: the model's chat template does not render it",
                param=f"messages[{len(earlier)}]",
            )
        return replace(rendered, text=text)

    def _makes_control(self, controls: ControlTokens, rendered: RenderedChat) -> bool:
        """Returns True if text of the client may be read as a control token in the rendering of its strings as they
        are."""
        skeleton = Skeleton(controls)
        setting = replace(rendered.setting, marks=skeleton)
        try:
            text = self._text_of(setting, setting.prompt.messages, rendered.adjustments)
        except Exception:  # the template refuses neutral texts; marked ones are as long as the client's
            return True
        return skeleton.spells or controls.read_in(rendered.text) != controls.read_in(text)

    def _of_user(self, content: object) -> str:
        return _tried(self._apply, [{"role": Role.USER.value, "content": content}])

    def _rendered(self, setting: _Setting) -> RenderedChat:
        prompt, refusal = setting.prompt, None
        for adjustments in self._worth_trying(prompt.messages):
            try:
                text = self._text_of(setting, prompt.messages, adjustments)
            except RenderingTooLong:
                raise
            except Exception as error:
                refusal = refusal or error
                continue
            return self._with_content_kept(RenderedChat(text, adjustments, setting))
        assert refusal is not None
        raise self._failure(setting, refusal) from refusal

    def text_beside(self, rendered: RenderedChat, messages: Sequence[ChatMessage]) -> str:
        """Render other messages in the same setting. Raises whatever the template does."""
        return self._text_of(rendered.setting, messages, rendered.adjustments)

    def _text_of(self, setting: _Setting, messages: Sequence[ChatMessage], adjustments: Adjustments) -> str:
        text = self._applied(setting, messages, adjustments)
        if setting.images is not None:
            text = text.replace(STAND_IN, setting.images.written)
        if not has_stand_in(text):  # no other text can contain the name
            return text
        text = without_stand_ins(text)
        if not has_stand_in(text):
            return text
        self._traits = replace(self._traits, reads_arguments=True)
        return self._text_of(setting, messages, adjustments)

    def _applied(self, setting: _Setting, messages: Sequence[ChatMessage], adjustments: Adjustments) -> str:
        prompt, marks = setting.prompt, setting.marks
        shaped = messages_for_template(messages, self._traits, adjustments, setting.images)
        tools = tools_for_template(prompt.tools)
        arguments: Mapping[str, Any] = prompt.template_kwargs
        if marks is not None:
            shaped, tools = marks.of_shape(shaped), marks.of_shape(tools)
            arguments = {name: marks.of_argument(value) for name, value in arguments.items()}
        return self._apply(
            shaped,
            tools=tools,
            add_generation_prompt=not prompt.continues,
            max_chars=setting.max_chars,
            **arguments,
        )

    def _worth_trying(self, messages: Sequence[ChatMessage]) -> list[Adjustments]:
        """Every combination that would change these messages, fewest changes first."""
        has_calls = any(message.tool_calls for message in messages)
        possible = (has_calls, has_runs(messages), has_calls, has_late_system(messages))
        choices = itertools.product(*([False, True] if is_possible else [False] for is_possible in possible))
        return [Adjustments(*choice) for choice in sorted(choices, key=sum)]

    def _with_content_kept(self, rendered: RenderedChat) -> RenderedChat:
        setting = rendered.setting
        messages = setting.prompt.messages
        unmarked = str if rendered.controls is None else rendered.controls.unmarked
        last = next((text for message in reversed(messages) if (text := _last_text(message))), "")
        if last in unmarked(rendered.text):
            return rendered
        adjustments = replace(rendered.adjustments, text_parts=True)
        try:
            text = self._text_of(setting, messages, adjustments)
        except Exception:  # the first rendering is used: the template may only have escaped or shortened the text
            return rendered
        return replace(rendered, text=text, adjustments=adjustments) if last in unmarked(text) else rendered

    def _failure(self, setting: _Setting, refusal: Exception) -> TemplateFailed:
        reason, messages = _reason(refusal), setting.prompt.messages
        at = self._first_refused(setting, reason)
        roles = [message.role.value for message in messages]
        shown = roles if len(roles) <= 12 else [*roles[:6], "...", *roles[-5:]]
        return TemplateFailed(
            f"the model's chat template refused messages[{at}] (role {roles[at]}; roles in order: {', '.join(shown)}):"
            f" {reason}",
            param="messages",
        )

    def _first_refused(self, setting: _Setting, reason: str) -> int:
        """Returns the index of the message that causes the refusal, by bisection."""
        low, high = 1, len(setting.prompt.messages)
        while low < high:
            middle = (low + high) // 2
            if self._refusal(setting, setting.prompt.messages[:middle]) == reason:
                high = middle
            else:
                low = middle + 1
        return low - 1

    def _refusal(self, setting: _Setting, messages: Sequence[ChatMessage]) -> str | None:
        try:
            self._text_of(setting, messages, Adjustments())
        except Exception as error:
            return _reason(error)
        return None

    def _check_kwargs(self, prompt: ChatPrompt) -> None:
        num_chars = 0
        for name, value in prompt.template_kwargs.items():
            if name in self._reserved or not name.isidentifier():
                raise TemplateFailed(
                    f"chat_template_kwargs.{printable(name)} cannot be set: the server or the tokenizer sets it, or"
                    " it is not an identifier; leave it out",
                    param="chat_template_kwargs",
                )
            num_chars += sum(len(text) + _NODE_CHARS for text in strings_of({name: value}))
        if num_chars > MAX_ARGUMENT_CHARS or num_chars * len(prompt.messages) > MAX_REPEATED_CHARS:
            raise TemplateFailed(
                f"chat_template_kwargs is too large: {num_chars} characters, for {len(prompt.messages)} messages; at"
                f" most {min(MAX_ARGUMENT_CHARS, MAX_REPEATED_CHARS // max(1, len(prompt.messages)))} are allowed",
                param="chat_template_kwargs",
            )


def _last_text(message: ChatMessage) -> str:
    """Returns the text of a message after its last image; empty if that is white space."""
    return message.content[message.images[-1].at if message.images else 0 :].strip()


def _places(apply: Callable[..., str], traits: TemplateTraits, roles: Sequence[Role]) -> list[int]:
    """Returns the positions of messages of these roles in the rendered text, -1 for one that is dropped; nothing if the
    template refuses them, which is adjusted when it happens, or shows none."""
    messages = [ChatMessage(role, probe) for role, probe in zip(roles, _PROBES, strict=False)]
    text = _tried(apply, messages_for_template(messages, traits, Adjustments()))
    places = [text.find(message.content) for message in messages]
    return places if max(places) >= 0 else []


def _lacks_system(apply: Callable[..., str], traits: TemplateTraits) -> bool:
    """Returns True for a template that refuses or drops a system message, and shows a user's."""
    places = _places(apply, traits, (Role.SYSTEM, Role.USER))
    return places[0] < 0 if places else bool(_places(apply, traits, (Role.USER,)))


def _are_displaced(places: Sequence[int]) -> bool:
    return any(place < 0 for place in places) or list(places) != sorted(places)


def _shows_tools(apply: Callable[..., str]) -> bool:
    return _TOOL.name in _tried(apply, [{"role": Role.USER.value, "content": _PROBES[0]}], [_TOOL])


def _around_each_role(apply: Callable[..., str]) -> str:
    call = ToolCall("probe0000", _PROBES[1], "{}")
    chats = (
        [ChatMessage(Role.SYSTEM, _PROBES[0]), ChatMessage(Role.USER, _PROBES[1])],
        [ChatMessage(Role.USER, _PROBES[0]), ChatMessage(Role.ASSISTANT, _PROBES[1], reasoning=_PROBES[2])],
        [
            ChatMessage(Role.USER, _PROBES[0]),
            ChatMessage(Role.ASSISTANT, tool_calls=(call,)),
            ChatMessage(Role.TOOL, _PROBES[2], tool_call_id=call.id),
        ],
    )
    traits, adjustments = TemplateTraits(True), Adjustments()
    return "".join(_tried(apply, messages_for_template(chat, traits, adjustments), [_TOOL]) for chat in chats)


def _tried(
    apply: Callable[..., str],
    messages: list[dict[str, Any]],
    tools: Sequence[ToolSpec] = (),
    *,
    is_answered: bool = False,
) -> str:
    """Returns the rendered text; empty where the template refuses the messages. `is_answered`: without the beginning of
    another answer."""
    try:
        return apply(messages, tools=tools_for_template(tools), add_generation_prompt=not is_answered)
    except Exception:
        return ""


def _reason(error: Exception) -> str:
    """Returns the reason of a refusal. An error raised by the template is a sentence; any other needs its type to be
    understood."""
    text = str(error).strip() or "no reason given"
    is_raised_by_template = type(error).__name__ == "TemplateError"
    return text if is_raised_by_template else f"{type(error).__name__}: {text}"
