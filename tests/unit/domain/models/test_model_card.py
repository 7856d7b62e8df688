"""Which model answers to a name."""

import pytest

from domain.models.model_card import DEFAULT, answering_model

ALIASES = {"claude-haiku-*": "small", "claude-*": DEFAULT, "gpt-?": "big"}


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("claude-haiku-4-5-20251001", "small"),
        ("claude-opus-4-8", "demo"),
        ("gpt-5", "big"),
        ("gpt-5.5", "gpt-5.5"),
        ("Claude-opus", "Claude-opus"),
        ("claude-local", "claude-local"),
        ("nobody", "nobody"),
        ("", ""),
    ],
)
def test_the_first_alias_that_fits_counts_for_what_is_not_served(asked: str, answers: str) -> None:
    served = {"demo", "small", "big", "claude-local"}
    assert answering_model(asked, ALIASES, served=served, default="demo") == answers


def test_one_alias_takes_every_name_that_nobody_serves() -> None:
    assert answering_model("anything", {"*": DEFAULT}, served={"demo", "other"}, default="demo") == "demo"
    assert answering_model("other", {"*": DEFAULT}, served={"demo", "other"}, default="demo") == "other"
    assert answering_model("default", {}, served={"demo"}, default="demo") == "demo"
    assert answering_model("default", {"default": "other"}, served={"demo"}, default="demo") == "other"
    assert answering_model("default", {}, served={"default"}, default="demo") == "default"
    assert answering_model("anything", {}, served={"demo"}, default="demo") == "anything"
