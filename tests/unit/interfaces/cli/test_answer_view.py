"""The view of an answer in the terminal."""

from io import StringIO

import pytest
from rich.console import Console

from interfaces.cli.chat.answer_view import AnswerView, end_of_blocks


@pytest.mark.parametrize(
    ("finished", "still_open"),
    [
        ("", "one line"),
        ("one\n\n", "two"),
        ("", "- a\n\n  more of a"),
        ("", "```\nx\n\ny"),
        ("```\nx\n\ny\n```\n\n", "after"),
        ("a\n\nb\n\n", "c"),
    ],
)
def test_a_block_ends_behind_a_blank_line_outside_of_code(finished: str, still_open: str):
    assert end_of_blocks(finished + still_open) == len(finished)


def shown(is_terminal: bool, *pieces: tuple[str, bool]) -> str:
    file = StringIO()
    view = AnswerView(Console(file=file, force_terminal=is_terminal, width=40, color_system=None, _environ={}))
    for text, is_reasoning in pieces:
        view.show(text, is_reasoning)
    view.finish()
    return file.getvalue()


def test_a_pipe_gets_the_answer_as_it_is_without_reasoning():
    assert shown(False, ("Hm.", True), ("# A\n\n*b*", False)) == "# A\n\n*b*\n"


def test_a_terminal_gets_reasoning_and_formatted_text_once_each():
    text = shown(True, ("Hm.", True), ("First.\n\n", False), ("- item\n", False), ("\x1b[2J", False))
    assert text.index("Hm.") < text.index("First.") < text.rindex(" • item")
    assert "\x1b[2J" not in text.replace("\\x1b[2J", ""), "no model's control code reaches the terminal"
