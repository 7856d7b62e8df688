"""Foreign text made short and printable."""

import pytest

from domain.errors import MAX_MESSAGE_CHARS, InvalidRequest
from domain.host_name import bare_host, host_of
from domain.printable import PRINTABLE_CHARS, plain, printable


@pytest.mark.parametrize("text", ["", "cairn-demo", "org/name", "ä漢🌍", "x" * PRINTABLE_CHARS])
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_long_text_is_cut() -> None:
    assert printable("x" * 2**21) == "x" * (PRINTABLE_CHARS - 3) + "..."
    assert printable("abcdef", 5) == "ab..."
    assert len(printable("\x00" * 2**21)) == PRINTABLE_CHARS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("line\u2028two", r"line\u2028two"),
        ("\ud800", r"\ud800"),
        ("\x7f\x9b", r"\x7f\x9b"),
    ],
)
def test_what_cannot_be_seen_is_escaped(text: str, expected: str) -> None:
    assert printable(text) == expected


def test_no_error_is_longer_than_a_page() -> None:
    error = InvalidRequest("x" * 2**21, param="y" * 2**21)
    assert len(error.message) == MAX_MESSAGE_CHARS == len(str(error))
    assert len(error.param or "") == PRINTABLE_CHARS


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost.:8000", "localhost"),
        ("127.0.0.1:8000", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[0:0::1]:80", "::1"),
        ("a-b.c_d:", "a-b.c_d"),
        ("", None),
        (":80", None),
        ("a:b", None),
        ("a:80:80", None),
        ("[::1", None),
        ("[::1]x", None),
        ("[localhost]", None),
        ("a b", None),
        ("a/b", None),
        ("x@localhost", None),
        ("localhost\x00", None),
        ("-a", None),
        ("x" * 300, None),
    ],
)
def test_hosts(authority: str, host: str | None) -> None:
    assert host_of(authority) == host


def test_bare_hosts() -> None:
    assert [bare_host(name) for name in ("A.b.", "::1", "10.0.0.1", "a:1", "*", "http://a")] == [
        *("a.b", "::1", "10.0.0.1", None, None, None)
    ]


def test_a_terminal_gets_no_command_from_a_model() -> None:
    assert plain("\x1b]52;c;Zm9v\x07\x9b2J\r") == r"\x1b]52;c;Zm9v\x07\x9b2J\r"
    assert plain("a\tb\n漢 👨\u200d👧") == "a\tb\n漢 👨\u200d👧"
