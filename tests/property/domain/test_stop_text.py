"""StopText against a reference that sees the whole text at once: any split gives the same output, nothing leaks."""

from hypothesis import example, given
from hypothesis import strategies as st

from domain.output.reader import StopText

texts = st.text(alphabet="abc", max_size=40)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3).map(tuple)


def expected(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    found = [(at, -len(stop), stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return text, None
    at, _, stop = min(found)
    return text[:at], stop


def streamed(text: str, stops: tuple[str, ...], cuts: list[int]) -> tuple[str, str | None]:
    matcher, shown, start = StopText(stops), "", 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        step = matcher.feed(text[start:cut])
        shown, start = shown + step.text, cut
        if step.matched is not None:
            return shown, step.matched
    last = matcher.flush()
    return shown + last.text, last.matched


@given(texts, stops, st.lists(st.integers(0, 40), max_size=12))
@example("aa", ("a", "aa"), [1])
def test_any_split_gives_what_the_whole_text_gives(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    assert streamed(text, stops, cuts) == expected(text, stops)


@given(texts, stops)
def test_single_characters_never_show_part_of_a_stop_string(text: str, stops: tuple[str, ...]) -> None:
    shown, matched = streamed(text, stops, list(range(len(text))))
    assert matched in (None, *stops)
    assert not any(stop in shown for stop in stops)


def test_text_is_released_as_soon_as_it_cannot_become_a_stop_string() -> None:
    matcher = StopText(("END",))
    assert matcher.feed("it is the E").text == "it is the "
    assert matcher.feed("N").text == ""
    assert matcher.feed("T ").text == "ENT "
