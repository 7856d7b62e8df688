"""What a grammar lets each family write is what its parser reads: with the family's markers in a real tokenizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.llguidance.library import new_tokenizer
from adapters.tokenizers.hf_tokenizer import HfTokenizer
from domain.call_grammar.tool_grammar import tool_call_grammar
from domain.output.families import FAMILIES
from domain.output.family import Values, WrittenCalls, WrittenParameters
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.grammar import Grammar, json_schema_grammar
from domain.request.request import ChatPrompt
from tests.support.http.replay.transcripts import TRANSCRIPTS, Told, Transcript, told
from tests.support.mlx.writing_models import takes
from tests.support.text.output_parsers import model_of, numbered_ids

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (ToolSpec("weather", "", SCHEMA, strict=True), ToolSpec("clock", "", SCHEMA))
ANSWER = json_schema_grammar(SCHEMA, "x")
CASES = {
    case.family: replace(case, prompt_end=case.prompt_end.removesuffix("<think>\n"))
    for case in reversed(TRANSCRIPTS.values())
}
WRITING = list(CASES)


class Model:
    def __init__(self, case: Transcript, folder: Path) -> None:
        tokenizer = model_of(case, folder / "model")
        assert isinstance(tokenizer, HfTokenizer)
        self.tokenizer = tokenizer
        self.prompt = ChatPrompt((ChatMessage(Role.USER, "?"),), TOOLS)
        self.prompt_ids = tokenizer.render(self.prompt).token_ids
        self._tokens = new_tokenizer(tokenizer.vocabulary())

    @property
    def written(self) -> WrittenCalls:
        return self.tokenizer.written_calls

    def calls(self, *, must_call: bool = True, max_calls: int | None = None) -> Grammar:
        special = self.tokenizer.special_tokens
        return tool_call_grammar(self.written, TOOLS, special, must_call=must_call, max_calls=max_calls)

    def text_of(self, *calls: tuple[str, str]) -> str:
        """Calls as the family is declared to write them."""
        how = self.written
        number = f"{how.number}0" if how.number else ""
        each = [
            f"{how.mark}{how.opening}{name}{number}{how.before_arguments}{self._written(arguments)}{how.closing}"
            for name, arguments in calls
        ]
        return how.first + how.between.join(each) + how.last

    def misfits(self) -> list[str]:
        """Arguments that do not fit. A raw string may be any text."""
        how = self.written.parameters
        is_raw = how is not None and how.values is Values.RAW
        return ["{}", '{"town": "Bern"}', *([] if is_raw else ['{"city": 4}'])]

    def _written(self, arguments: str) -> str:
        """JSON as the family writes it; of strings and numbers only."""
        how = self.written.parameters
        if how is None:
            return arguments
        return how.between.join(
            f"{how.open}{key}" + (_raw if how.values is Values.RAW else _literal)(how, value)
            for key, value in json.loads(arguments).items()
        )

    def takes(self, grammar: Grammar, text: str) -> bool:
        """Whether a model held to it may write this and end there."""
        return takes(self._tokens, grammar, self.tokenizer.encode(text).token_ids)

    def read(self, text: str) -> Told:
        parser = self.tokenizer.output_parser(self.prompt, self.prompt_ids, numbered_ids())
        fed = [delta for token_id in self.tokenizer.encode(text).token_ids for delta in parser.feed(token_id)]
        return told([*fed, *parser.finish()])


def _raw(how: WrittenParameters, value: Any) -> str:
    if isinstance(value, str):
        return (how.before_string or how.before_value) + value + (how.after_string or how.close)
    return how.before_value + json.dumps(value) + how.close


def _literal(how: WrittenParameters, value: Any) -> str:
    is_quoted = how.quote and isinstance(value, str)
    return how.before_value + (f"{how.quote}{value}{how.quote}" if is_quoted else json.dumps(value))


@pytest.mark.parametrize("family", WRITING)
def test_a_forced_call_is_read_as_one(family: str, tmp_path: Path) -> None:
    model = Model(CASES[family], tmp_path)
    grammar, call = model.calls(), ("weather", '{"city": "Bern"}')
    assert model.takes(grammar, model.text_of(call))
    read = model.read(model.text_of(call))
    assert [(name, json.loads(arguments)) for _, name, arguments in read.calls] == [("weather", {"city": "Bern"})]
    assert read.text == ""
    for misfit in model.misfits():
        assert not model.takes(grammar, model.text_of(("weather", misfit)))
    assert not model.takes(grammar, model.text_of(("nobody", '{"city": "Bern"}')))
    assert not model.takes(grammar, "It rains.")


@pytest.mark.parametrize("family", [name for name in WRITING if name not in ("harmony", "llama3", "json")])
def test_several_calls_are_read_as_several(family: str, tmp_path: Path) -> None:
    model = Model(CASES[family], tmp_path)
    text = model.text_of(("weather", '{"city": "Bern"}'), ("clock", '{"city": "Rome"}'))
    assert model.takes(model.calls(), text)
    assert not model.takes(model.calls(max_calls=1), text)
    assert [name for _, name, _ in model.read(text).calls] == ["weather", "clock"]


def test_every_family_has_a_form_for_any_tokenizer() -> None:
    assert all(family.writes and not family.writes[-1].needs for family in FAMILIES)


@pytest.mark.parametrize("family", WRITING)
def test_strict_calls_stand_among_text(family: str, tmp_path: Path) -> None:
    model = Model(CASES[family], tmp_path)
    if not model.written.among_text:
        return
    grammar, only = model.calls(must_call=False), model.calls(must_call=False, max_calls=1)
    good = model.text_of(("weather", '{"city": "Bern"}'))
    free = model.text_of(("clock", '{"zone": [4]}'))  # not strict: any object
    for one in (grammar, only):
        assert model.takes(one, "It rains.")
        assert model.takes(one, f"Let me see. {good}")
        assert model.takes(one, free)
        for misfit in model.misfits():
            assert not model.takes(one, "Let me see. " + model.text_of(("weather", misfit)))
    assert not model.takes(only, good + good)


@pytest.mark.parametrize("family", [name for name in WRITING if name not in ("llama3", "json")])
def test_an_answer_in_a_form_leaves_room_for_calls(family: str, tmp_path: Path) -> None:
    model = Model(CASES[family], tmp_path)
    assert model.written.is_marked
    grammar = replace(ANSWER, calls=model.calls().text)
    assert model.takes(grammar, '{"city": "Bern"}')
    assert model.takes(grammar, model.text_of(("weather", '{"city": "Bern"}')))
    assert not model.takes(grammar, "It rains.")


TAGS = {"open": "<think>\n", "closed": "<think>\n\n</think>\n\n", "none": ""}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("opened", TAGS)
def test_reasoning_comes_first_where_the_prompt_leaves_it_open(opened: str, special: bool, tmp_path: Path) -> None:
    marks = ("<think>", "</think>")
    case = Transcript(
        "hermes",
        "x",
        template="<tool_call><think></think>",
        prompt_end=f"assistant\n{TAGS[opened]}",
        special=marks if special else (),
        marks=() if special else marks,
    )
    model = Model(case, tmp_path)
    reasoning = model.tokenizer.reasoning_before(model.prompt_ids)
    answer = '{"city": "Bern"}'
    if opened == "closed":
        assert reasoning is None
        return
    assert reasoning is not None
    for inner, text in ((ANSWER, answer), (model.calls(), model.text_of(("weather", answer)))):
        grammar = replace(inner, reasoning=reasoning)
        thought = "" if opened == "open" else "<think>"
        assert model.takes(grammar, f"{thought}{{hm}} so</think>\n\n{text}")
        assert model.takes(grammar, text) == (opened == "none")
        assert not model.takes(grammar, f"{thought}hm</think>\n\nwell")


def test_harmony_thinks_in_a_channel_of_its_own(tmp_path: Path) -> None:
    model = Model(CASES["harmony"], tmp_path)
    reasoning = model.tokenizer.reasoning_before(model.prompt_ids)
    assert reasoning is not None
    grammar = replace(replace(ANSWER, calls=model.calls(max_calls=1).text), reasoning=reasoning)
    thought, answer = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant", '{"city": "Bern"}'
    final = f"<|channel|>final<|message|>{answer}"
    for text in (final, thought + final, thought + model.text_of(("weather", answer))):
        assert model.takes(grammar, text)
    assert model.read(thought + final).text == answer
    assert not model.takes(grammar, "<|channel|>final<|message|>It rains.")
