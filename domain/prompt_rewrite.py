"""Rules that take what changes from session to session out of a system prompt, so that what follows it can be reused.

Some clients end their system prompt with what they find at each start: the state of a working tree, the date. When it
changes, everything behind it, the whole conversation, is another prompt. A rule moves that block to where only the
latest turn lies behind it, or leaves it out:

    as sent      system [ instructions, status ]   user 1   answer 1   user 2
    move         system [ instructions ]           user 1   answer 1   user 2 [ question, status ]
    drop         system [ instructions ]           user 1   answer 1   user 2

Not lossless: the model reads it elsewhere, or not at all. So no rule applies unless a setting names it, and whoever
asked is told which did. The same prompt always comes out the same, and one without the block comes out as it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from domain.chat import SYSTEM_ROLES, ChatMessage, Role, num_leading_system
from domain.errors import InvalidRequest
from domain.request import ChatPrompt
from domain.shown import shown


class RewriteAction(Enum):
    MOVE = "move"
    """To the end of the last user message."""
    DROP = "drop"


BLOCKS: Mapping[str, re.Pattern[str]] = {
    "claude-code-git-status": re.compile(
        r"gitStatus: This is the git status at the start of the conversation\..*\Z", re.DOTALL
    ),
    "opencode-env": re.compile(r"<env>\n(?:  [^\n]*\n){1,16}</env>"),
}
"""What clients write, by a name of ours; each is known by words that nobody else begins a block with."""


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """`block`: a name in BLOCKS."""

    action: RewriteAction
    block: str

    @property
    def name(self) -> str:
        """As it is set and told: `move:claude-code-git-status`."""
        return f"{self.action.value}:{self.block}"


def parsed_rule(name: str) -> RewriteRule:
    """The inverse of `RewriteRule.name`. Raises InvalidRequest."""
    action, _, block = name.partition(":")
    if action not in {one.value for one in RewriteAction} or block not in BLOCKS:
        raise InvalidRequest(
            f"cache.rewrites: '{shown(name)}' is no rule; rules are move:BLOCK and drop:BLOCK, with BLOCK one of"
            f" {', '.join(BLOCKS)}",
            param="cache.rewrites",
        )
    return RewriteRule(RewriteAction(action), block)


def rewritten(prompt: ChatPrompt, rules: Sequence[RewriteRule]) -> tuple[ChatPrompt, tuple[str, ...]]:
    """The prompt after all rules, in order, and the names of those that changed it."""
    applied: list[str] = []
    for rule in rules:
        if (messages := _applied(prompt.messages, rule)) is not None:
            prompt = replace(prompt, messages=messages)
            applied.append(rule.name)
    return prompt, tuple(applied)


def _applied(messages: Sequence[ChatMessage], rule: RewriteRule) -> tuple[ChatMessage, ...] | None:
    """None where there is no such block, or nothing to move it to."""
    pattern = BLOCKS[rule.block]
    found = [
        (at, match)
        for at, message in enumerate(messages[: num_leading_system(messages)])
        if message.role in SYSTEM_ROLES and (match := pattern.search(message.content)) is not None
    ]
    asked = max((at for at, message in enumerate(messages) if message.role is Role.USER), default=None)
    if not found or (asked is None and rule.action is RewriteAction.MOVE):
        return None
    at, match = found[-1]
    before, after = messages[at].content[: match.start()].rstrip("\n"), messages[at].content[match.end() :]
    changed = list(messages)
    changed[at] = replace(messages[at], content=before + after)
    if asked is not None and rule.action is RewriteAction.MOVE:
        question = messages[asked].content
        changed[asked] = replace(messages[asked], content=f"{question}\n\n{match[0].strip()}")
    return tuple(changed)


__all__ = ("BLOCKS", "RewriteAction", "RewriteRule", "parsed_rule", "rewritten")
