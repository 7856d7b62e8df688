"""Fork points of a rendered chat: the positions where later requests are likely to branch off, found by rendering them.

A likely later request shares the beginning of this prompt; the fork point is where their tokens diverge:

    NEXT_TURN    the same messages, a probe answer and a probe question (with tools also: a probe call and its result).
                 Templates that drop earlier reasoning or end with an opened thought part before the prompt's end.
    MORE_SAID    the same messages with more behind them, or in the last question: what a client asks that got no
                 answer, or one that it does not keep
    SYSTEM_END   the same system messages and tools with another first message; and another first question behind what
                 an agent puts before it: messages of its own, or tagged text at the beginning of the question's; or
                 behind its images
    TURN         the same messages up to one of the last user turns, and another one there

A probe that the template refuses has no fork point. Every position is a count of tokens that both prompts share. Tokens
are compared, not characters: a merge across the point where the texts diverge changes the token before it. Of a probe
only the part with that point and what follows it are encoded: both prompts share the parts before (`text_codec`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from adapters.tokenizers.chat_template import ChatTemplate, RenderedChat
from adapters.tokenizers.text_codec import EncodedText
from domain.prefix.explanation import common_length
from domain.prefix.prompt_content import ForkKind, ForkPoint
from domain.request.chat import SYSTEM_ROLES, ChatMessage, Role, ToolCall, num_leading_system
from domain.request.request import ChatPrompt

_NUM_TURNS = 3
_PROBES = ("probe", "Zebra", "7")
"""Contents that begin differently, so that one of them differs from any content of the prompt."""

_OPENING_TAG = re.compile(r"\s*<([\w-]{1,64})>")
_CLOSING_TAG = re.compile(r"</[\w-]{1,64}>\s+(?=\S)")

_CHARS_AFTER = 512
"""Characters of a probe that are encoded behind the point where it diverges: no merge looks further ahead."""

_RANK = {kind: rank for rank, kind in enumerate(ForkKind)}


def find_fork_points(
    prompt: ChatPrompt,
    template: ChatTemplate,
    encode: Callable[[str], EncodedText],
    rendered: RenderedChat,
    encoded: EncodedText,
) -> tuple[ForkPoint, ...]:
    """Returns fork points, ascending, one a position: where two kinds meet, the one that matters more. `encode` belongs
    to the prompt's owner, since most of a probe is theirs. `encoded`: the rendered text."""
    best: dict[int, ForkKind] = {}
    for kind, messages in likely_requests(prompt):
        try:
            other = template.text_beside(rendered, messages)
        except Exception:  # noqa: S112  the template refuses the probe, so a client could not send it either
            continue
        num_shared = common_length(rendered.text, other)
        start, num_before = encoded.start_shared(num_shared)
        rest = encode(other[start : num_shared + _CHARS_AFTER]).ids
        position = num_before + common_length(encoded.ids[num_before : num_before + len(rest)], rest)
        if position > 0 and (position not in best or _RANK[kind] < _RANK[best[position]]):
            best[position] = kind
    return tuple(ForkPoint(position, best[position]) for position in sorted(best))


def likely_requests(prompt: ChatPrompt) -> Iterator[tuple[ForkKind, Sequence[ChatMessage]]]:
    messages = prompt.messages
    answer = () if messages[-1].role is Role.ASSISTANT else (ChatMessage(Role.ASSISTANT, _PROBES[0]),)
    yield ForkKind.NEXT_TURN, (*messages, *answer, ChatMessage(Role.USER, _PROBES[0]))
    if answer:
        yield from ((ForkKind.MORE_SAID, more) for more in _with_more_said(messages))
    if prompt.tools:
        yield ForkKind.NEXT_TURN, (*messages, *_probe_call(prompt.tools[0].name))
    num_system = num_leading_system(messages)
    if num_system < len(messages):
        yield ForkKind.SYSTEM_END, (*messages[:num_system], _other_than(messages[num_system]))
    yield from ((ForkKind.SYSTEM_END, first) for first in _first_questions(messages, num_system))
    turns = [at for at, message in enumerate(messages) if message.role is Role.USER and at > num_system]
    for at in turns[-_NUM_TURNS:]:
        yield ForkKind.TURN, (*messages[:at], _other_than(messages[at]))


def _with_more_said(messages: Sequence[ChatMessage]) -> Iterator[Sequence[ChatMessage]]:
    """Yields chats with more text in the last question, if it has no answer, and behind the last message, if that is
    another. Clients join texts of one role by an empty line; so does Cairn where a template takes no two questions."""
    spoken = max((at for at, one in enumerate(messages) if one.role not in SYSTEM_ROLES), default=0)
    if messages[spoken].role is Role.USER:
        yield *messages[:spoken], replace(messages[spoken], content=f"{messages[spoken].content}\n\n{_PROBES[0]}")
    if messages[-1].role is not Role.USER:
        yield *messages, ChatMessage(Role.USER, _PROBES[0])


def _first_questions(messages: Sequence[ChatMessage], num_system: int) -> Iterator[Sequence[ChatMessage]]:
    """Yields chats up to the first user message, and up to the last one before the first answer, with another question
    there: which of them holds the question depends on the agent, and on how often it asked. None for the first
    message where nothing stands before the question in it."""
    answered = next((at for at, one in enumerate(messages) if one.role in (Role.ASSISTANT, Role.TOOL)), len(messages))
    asked = [at for at in range(num_system, answered) if messages[at].role is Role.USER]
    for at in sorted({*asked[:1], *asked[-1:]}):
        content, images = messages[at].content, messages[at].images
        last = max((tag.end() for tag in _CLOSING_TAG.finditer(content)), default=0)
        for start in sorted({_end_of_tagged(content), last}):
            if start or at > num_system:
                yield *messages[:at], _other_than(messages[at], start)
        if images:
            yield *messages[:at], replace(_other_than(messages[at], images[-1].at), media=images)


def _end_of_tagged(content: str) -> int:
    """Returns the end of the tagged texts at the beginning of a content; more of them may follow the question."""
    end = 0
    while (tag := _OPENING_TAG.match(content, end)) is not None:
        close = content.find(f"</{tag[1]}>", tag.end())
        if close < 0:
            break
        end = close + len(tag[1]) + len("</>")
    rest = content[end:]
    return end + len(rest) - len(rest.lstrip()) if end else 0


def _other_than(message: ChatMessage, start: int = 0) -> ChatMessage:
    """Returns a user message that differs from this one at its first visible character from `start` on."""
    opening = message.content[start:].strip()[:1].casefold()
    probe = next(probe for probe in _PROBES if probe[0].casefold() != opening)
    images = tuple(image for image in message.images if image.at < start)
    return ChatMessage(Role.USER, message.content[:start] + probe, media=images)


def _probe_call(tool: str) -> tuple[ChatMessage, ChatMessage]:
    call = ToolCall("probe0000", tool, "{}")
    return ChatMessage(Role.ASSISTANT, tool_calls=(call,)), ChatMessage(Role.TOOL, _PROBES[0], tool_call_id=call.id)
