"""Whatever a model writes, in whatever tokens: the same content, nothing lost, and work in proportion to its length."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from types import FrameType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from domain.output.text_parser import TextParser
from tests.support.effort import DRAWS, drawn
from tests.support.http.replay.transcripts import TRANSCRIPTS, Transcript
from tests.support.text.output_parsers import marked, parsed, text_parser

NAMES = sorted(TRANSCRIPTS)
_MARKER = re.compile(r"<[^<>\s]{2,40}>|\[[A-Z_/]{3,20}\]|<\|[^|]*\|>")
_PIECES = (
    "Hi ",
    "\n",
    " ",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ",",
    ":",
    "get_weather",
    "now",
    "3",
    "é",
    "<",
    "call:",
    "```",
)
_PIECES = (
    *_PIECES,
    '{"name": "',
    '", "arguments": ',
    '{"city": "Bern"}',
    "to=functions.now",
    "functions.now:0",
    "(",
    ")=",
)


def _vocabulary(case: Transcript) -> tuple[str, ...]:
    markers = tuple(_MARKER.findall(case.answer))
    return tuple(dict.fromkeys((*case.special, *case.marks, *markers, *_PIECES)))


@st.composite
def answers(draw: st.DrawFn) -> tuple[Transcript, str]:
    """A transcript cut up, with markers and other pieces of its family thrown in."""
    case = TRANSCRIPTS[draw(st.sampled_from(NAMES))]
    vocabulary = st.sampled_from(_vocabulary(case))
    length = len(case.answer)
    cuts = sorted(draw(st.lists(st.integers(0, length), max_size=4)))
    parts = [case.answer[a:b] for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
    mixed = [
        part + "".join(draw(st.lists(vocabulary, max_size=4)))
        for part in parts
        if draw(st.booleans()) or len(parts) < 3
    ]
    return case, "".join(mixed)


def _split(text: str, cuts: Sequence[int]) -> Iterator[str]:
    start = 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        yield text[start:cut]
        start = cut


@given(answers(), st.lists(st.integers(0, 400), max_size=12))
def test_any_split_gives_what_the_whole_gives(answer: tuple[Transcript, str], cuts: list[int]) -> None:
    case, text = answer
    found = {}
    for name, split in {"whole": [], "cut": cuts, "single": list(range(len(text)))}.items():
        parser, _ = text_parser(case)
        found[name] = parsed(parser, _split(marked(text, case), split))
    assert found["cut"] == found["whole"]
    assert found["single"] == found["whole"]


@given(answers())
def test_nothing_is_lost_in_what_is_no_markup(answer: tuple[Transcript, str]) -> None:
    """Words come out in reasoning, text, an id, a name or arguments. (The headers of harmony's messages are markup.)"""
    case, text = answer
    assume(case.family != "harmony")
    words = [f"ẅ{index}ẅ" for index in range(text.count("Bern") + text.count("Hi "))]
    numbered = iter(words)
    text = re.sub("Bern|Hi ", lambda _: next(numbered), text)
    parser, _ = text_parser(case)
    found = parsed(parser, marked(text, case))
    everything = found.reasoning + found.text + "".join(chain(*found.calls))
    for word in words:
        assert everything.count(word) >= 1, word


@given(st.text(alphabet="abc <>{}[]\"'\n`/|", max_size=60), st.sampled_from(NAMES))
def test_text_without_a_familys_markers_comes_back_as_it_is(text: str, name: str) -> None:
    case = TRANSCRIPTS[name]
    parser, _ = text_parser(case)
    if case.prompt_end and case.prompt_end.strip() in ("<think>",):
        return
    told = parsed(parser, text)
    assert not told.calls
    shown = told.text if case.family != "harmony" else told.text.strip()
    assert shown == (text if case.family != "harmony" else text.strip())


@given(
    st.dictionaries(
        st.sampled_from(["city", "b", "c d"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\{}[]<>/|é\n tool_call', max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=3,
    ),
    st.sampled_from(
        ["hermes", "mistral", "mistral_v3", "kimi_k2", "deepseek_v31", "granite3", "llama3", "harmony_call"]
    ),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_arguments_in_json_arrive_as_they_were_written(arguments: dict[str, Any], name: str, cuts: list[int]) -> None:
    case = TRANSCRIPTS[name]
    old, new = json.dumps({"city": "Bern", "days": 3}), json.dumps(arguments, ensure_ascii=False)
    parser, answer = text_parser(case)
    found = parsed(parser, _split(answer.replace(old, new), cuts))
    assert found.calls[0][1:] == ("get_weather", new)
    assert [name for _, name, _ in found.calls] == [name for name, _ in case.calls]


ONE_A_FAMILY = sorted({case.family: name for name, case in TRANSCRIPTS.items()}.values())

HOSTILE: dict[str, Callable[[int, Transcript], str]] = {
    "angles": lambda n, _: "<" * n,
    "braces": lambda n, _: "{" * n,
    "brackets": lambda n, _: "[" * n,
    "spaces": lambda n, _: " \n" * (n // 2),
    "quotes": lambda n, _: '"' * n,
    "markers": lambda n, case: "".join(_vocabulary(case)[index % len(_vocabulary(case))] for index in range(n // 8)),
    "same_marker": lambda n, case: _vocabulary(case)[0] * (n // 8),
    "cut_open": lambda n, case: (
        case.answer[: case.answer.index("Bern")] + "x" * n if "Bern" in case.answer else "x" * n
    ),
    "nested": lambda n, case: case.answer.replace("3", "[" * n),
    "nested_text": lambda n, case: case.answer.replace("Bern", '"{' * (n // 2)),
    "openings": lambda n, case: case.answer[: case.answer.index("Bern")] * (n // 100) if "Bern" in case.answer else "",
    "functions": lambda n, case: case.answer.replace('"name"', '"function": {' * (n // 13)),
    "closes": lambda n, case: case.answer.replace("Bern", "</parameter> " * (n // 13)),
}

HOSTILE_PAIRS = [
    (name, hostile)
    for name in ONE_A_FAMILY
    for hostile, text in HOSTILE.items()
    if len(text(2_400, TRANSCRIPTS[name])) > len(text(600, TRANSCRIPTS[name]))
]
SOME_PAIRS = HOSTILE_PAIRS[:: 1 if DRAWS >= 1 else 3]
"""Each family and each kind is among them."""


def _feed(text: str, parser: TextParser) -> None:
    for start in range(0, len(text), 3):
        parser.feed(text[start : start + 3])
    parser.finish()


def _num_lines(text: str, parser: TextParser) -> int:
    """Lines of Python that parsing takes, three characters at a time."""
    count = 0

    def trace(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _feed(text, parser)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(("name", "hostile"), SOME_PAIRS)
def test_work_grows_no_faster_than_the_answer(name: str, hostile: str) -> None:
    """Twice as many characters more take twice as many lines more."""
    case = TRANSCRIPTS[name]
    texts = [marked(HOSTILE[hostile](num_chars, case), case) for num_chars in (600, 1_200, 2_400)]
    _feed(texts[0], text_parser(case)[0])  # what is compiled at the first time only does not count
    lines = [_num_lines(text, text_parser(case)[0]) for text in texts]
    assert lines[2] - lines[1] <= 2.5 * (lines[1] - lines[0]) + 2_000


@pytest.mark.parametrize(("name", "hostile"), SOME_PAIRS)
def test_what_waits_to_be_decided_is_no_longer_than_a_marker(name: str, hostile: str) -> None:
    case = TRANSCRIPTS[name]
    parser, _ = text_parser(case)
    for piece in _split(marked(HOSTILE[hostile](1_000, case), case), range(0, 10_000, 3)):
        parser.feed(piece)
        assert parser._reader.num_unread < 64


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "gemma4", "harmony_call"])
def test_a_long_hostile_answer_is_read_to_its_end(name: str, hostile: str) -> None:
    case = TRANSCRIPTS[name]
    parser, _ = text_parser(case)
    text = marked(HOSTILE[hostile](drawn(100_000), case), case)
    assert parsed(parser, _split(text, range(0, len(text), 5))) is not None
