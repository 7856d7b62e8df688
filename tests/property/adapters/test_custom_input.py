"""The text inside a custom tool's arguments is the same however they are cut."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from interfaces.http.fields.custom_tools import CustomInput


def fed(arguments: str, cuts: list[int]) -> str:
    told, stream, at = "", CustomInput(), 0
    for cut in sorted(cut % (len(arguments) + 1) for cut in cuts):
        told += stream.feed(arguments[at:cut])
        at = cut
    return told + stream.feed(arguments[at:]) + stream.finish()


CUTS = st.lists(st.integers(0, 10_000), max_size=30)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXT, CUTS, st.booleans(), st.sampled_from([None, 1]))
@example('a\\b"c\n\t/é😀', list(range(60)), True, None)
def test_the_text_is_what_json_says(text: str, cuts: list[int], is_ascii: bool, indent: int | None) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii, indent=indent)
    assert fed(arguments, cuts) == text


@given(st.text(), CUTS)
def test_any_split_gives_the_same_and_nothing_breaks(arguments: str, cuts: list[int]) -> None:
    for given_text in (arguments, f'{{"input": "{arguments}'):
        whole = fed(given_text, [])
        assert fed(given_text, cuts) == whole
        if '"input"' not in given_text:
            assert whole == given_text


@given(TEXT, st.integers(0, 40))
def test_arguments_that_are_cut_off_give_the_text_so_far(text: str, num_cut: int) -> None:
    arguments = json.dumps({"input": text})[:-2]
    kept = arguments[: max(len(arguments) - num_cut, 11)]
    assert text.startswith(fed(kept, []).split("\\")[0])


def test_what_is_no_such_object_is_the_text_itself() -> None:
    assert fed("*** Begin Patch", [3]) == "*** Begin Patch"
    assert fed('{"patch": "x"}', [3]) == '{"patch": "x"}'
    assert fed('{"input": 5}', [3]) == '{"input": 5}'


def test_half_a_surrogate_pair_breaks_nothing() -> None:
    assert fed('{"input": "a\\udc00b\\ud83d\\u0041c"}', []) == "a?b?Ac"
    fed('{"input": "a\\ud83d"}', []).encode()
