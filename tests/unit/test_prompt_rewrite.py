"""Rewriting rules: what one moves or drops, what it leaves alone, and that who asked is told."""

import pytest

from application.settings import CacheSettings
from domain.chat import ChatMessage, Role
from domain.errors import InvalidRequest
from domain.prompt_rewrite import BLOCKS, parsed_rule, rewritten
from domain.request import ChatPrompt

STATUS = (
    "gitStatus: This is the git status at the start of the conversation. Note that this status is a snapshot in time,"
    " and will not update during the conversation.\n\nCurrent branch: main\n\nStatus:\n?? f\n\nRecent commits:\n95c one"
)
"""As Claude Code 2.1.197 sends it."""

ENV = "<env>\n  Working directory: /w\n  Platform: linux\n  Today's date: Sun Nov 22 2026\n</env>"
"""As opencode 1.18.33 does."""

SAID = {"claude-code-git-status": (f"Be brief.\n\n{STATUS}", STATUS), "opencode-env": (f"Here:\n{ENV}\nSkills", ENV)}
LEFT = {"claude-code-git-status": "Be brief.", "opencode-env": "Here:\nSkills"}


def chat(*said: tuple[Role, str]) -> ChatPrompt:
    return ChatPrompt(tuple(ChatMessage(role, text) for role, text in said))


def turns(system: str) -> ChatPrompt:
    return chat(
        (Role.SYSTEM, system),
        (Role.USER, "one"),
        (Role.ASSISTANT, "1"),
        (Role.USER, "two"),
        (Role.ASSISTANT, ""),
        (Role.TOOL, "2"),
    )


def test_every_block_has_an_example() -> None:
    assert set(SAID) == set(BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_moves_behind_the_last_question(block: str) -> None:
    system, text = SAID[block]
    moved, applied = rewritten(turns(system), [parsed_rule(f"move:{block}")])
    assert applied == (f"move:{block}",)
    assert [message.content for message in moved.messages] == [LEFT[block], "one", "1", f"two\n\n{text}", "", "2"]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_dropped(block: str) -> None:
    dropped, applied = rewritten(turns(SAID[block][0]), [parsed_rule(f"drop:{block}")])
    assert applied == (f"drop:{block}",)
    assert dropped == turns(LEFT[block])


@pytest.mark.parametrize("rule", [f"{action}:{block}" for action in ("move", "drop") for block in BLOCKS])
@pytest.mark.parametrize(
    "prompt",
    [
        turns("Be brief. The word gitStatus: means nothing, nor does <env>."),
        chat((Role.USER, STATUS), (Role.SYSTEM, ENV)),
        chat((Role.USER, ENV)),
    ],
)
def test_what_has_no_such_block_in_its_system_prompt_is_left_as_it_is(prompt: ChatPrompt, rule: str) -> None:
    assert rewritten(prompt, [parsed_rule(rule)]) == (prompt, ())


def test_nothing_moves_where_nobody_asked() -> None:
    prompt = chat((Role.SYSTEM, STATUS), (Role.ASSISTANT, "hello"))
    assert rewritten(prompt, [parsed_rule("move:claude-code-git-status")]) == (prompt, ())


def test_a_long_system_prompt_of_beginnings_takes_no_long() -> None:
    """Linear: a quadratic search would take minutes."""
    for text in ("\n" * 2**20, "<env>\n" * 2**18, "<env>\n  <env>\n" * 2**17, "gitStatus: " * 2**17):
        prompt = turns(text)
        assert rewritten(prompt, [parsed_rule(f"move:{block}") for block in BLOCKS]) == (prompt, ())


@pytest.mark.parametrize("name", ["move", "move:", "copy:opencode-env", "move:nothing", ""])
def test_a_setting_that_is_no_rule_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cache\.rewrites.*claude-code-git-status"):
        CacheSettings(rewrites=(name,))


def test_a_block_is_named_once() -> None:
    with pytest.raises(InvalidRequest, match=r"cache\.rewrites"):
        CacheSettings(rewrites=("move:opencode-env", "drop:opencode-env"))
    assert [rule.name for rule in CacheSettings(rewrites=("drop:opencode-env",)).rewrite_rules] == ["drop:opencode-env"]
