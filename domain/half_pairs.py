"""Halves of surrogate pairs in JSON: escapes that spell no character, which an agent writes that cuts a text in the
middle of an emoji."""

import re

_HEX = rb"[0-9a-fA-F]{2}"
_HIGH, _LOW = rb"[89abAB]" + _HEX, rb"[c-fC-F]" + _HEX
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile(
    rb"\\u[dD](?:" + _HIGH + rb"(?!\\u[dD]" + _LOW + rb")|(?<!\\u[dD]" + _HIGH + rb"\\u[dD])" + _LOW + rb")"
)
_NO_UTF8 = b"\xff"

MAX_HALVES = 2**16
"""The limit on halves in one text, which take 20 ms: a body full of them would take seconds."""


def without_halves(json: bytes) -> bytes:
    """Returns JSON with U+FFFD in place of each half. What is not UTF-8 is returned as it is. Raises ValueError for too
    many halves. 32 MiB take some 20 ms, and up to 0.7 s where all of it is escapes."""
    if _SURROGATE.search(json) is None or _NO_UTF8 in json:
        return json
    hidden = json.replace(rb"\\", _NO_UTF8)  # so that a backslash begins an escape
    whole, num_halves = _HALF.subn(rb"\\ufffd", hidden, count=MAX_HALVES)
    if num_halves == MAX_HALVES:
        raise ValueError(f"holds {MAX_HALVES} or more halves of surrogate pairs; send whole characters")
    return whole.replace(_NO_UTF8, rb"\\")
