"""A custom tool's own grammar holds the text of its calls, in every family's form, and never breaks a request."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from application.settings import ServerSettings
from domain.call_grammar.text_grammar import text_regex
from domain.call_grammar.tool_grammar import tool_call_grammar
from domain.output.families import FAMILIES
from domain.request.chat import TextGrammar, ToolSpec
from tests.support.http.servers.live_service import live_service, settings_of
from tests.support.mlx.writing_models import WritingModel, writing_models
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.named_events import named_events

APPLY_PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""What codex sends for its editing tool."""
ANY_SOURCE = r"""start: pragma_source | plain_source
pragma_source: PRAGMA_LINE NEWLINE SOURCE
plain_source: SOURCE
PRAGMA_LINE: /[ \t]*\/\/ @exec:[^\r\n]*/
NEWLINE: /\r?\n/
SOURCE: /[\s\S]+/
"""
PATCH = '*** Begin Patch\n*** Update File: a "b".py\n@@ def é():\n-\tx = "\\\\"\n+y\n*** End Patch\n'
SMALL = r"""start: "<" /[a-c"\\\n\/]{1,6}/ LF "end" /[0-9]?/
%import common.LF
"""
MATCHES_SMALL = re.compile(r'<[a-c"\\\n/]{1,6}\nend[0-9]?')
INPUT: dict[str, Any] = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
NAMES = [family.name for family in FAMILIES]


def tool(definition: str, syntax: str = "lark") -> ToolSpec:
    return ToolSpec("patch", "", INPUT, text_grammar=TextGrammar(syntax, definition))


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], WritingModel]:
    return writing_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("family", NAMES)
def test_a_patch_is_written_and_read_in_every_form(family: str, model_of: Callable[[str], WritingModel]) -> None:
    model, patch = model_of(family), tool(APPLY_PATCH)
    good, bad = (model.call_of_text("patch", "input", text) for text in (PATCH, PATCH.replace("@@ def", "def")))
    for must_call in (True, False) if model.written.among_text else (True,):
        special = model.tokenizer.special_tokens
        grammar = tool_call_grammar(model.written, (patch,), special, must_call=must_call, max_calls=1)
        assert model.takes(grammar, good)
        assert not model.takes(grammar, bad)
    ((_, name, arguments),) = model.read(model.tokenizer.encode(good).token_ids, (patch,)).calls
    assert (name, json.loads(arguments)) == ("patch", {"input": PATCH})


@pytest.mark.parametrize("family", NAMES)
def test_whatever_is_written_matches_the_grammar(family: str, model_of: Callable[[str], WritingModel]) -> None:
    model, num_read = model_of(family), 0
    for seed in range(6):
        token_ids = model.walk(tool(SMALL), random.Random(seed), 200)
        if token_ids is not None:
            ((_, _, arguments),) = model.read(token_ids, (tool(SMALL),)).calls
            assert MATCHES_SMALL.fullmatch(json.loads(arguments)["input"])
            num_read += 1
    assert num_read


@pytest.mark.parametrize(
    ("syntax", "definition", "is_held"),
    [
        ("lark", APPLY_PATCH, True),
        ("lark", ANY_SOURCE, True),
        ("regex", r"^[a-z]+(\d{2}|\.)*$", True),
        ("lark", 'start: "a" start | "b"', False),
        ("lark", "start: <|pad|>", False),
        ("lark", 'start: "a"\n%ignore " "', False),
        ("lark", "start: nowhere", False),
        ("lark", "start: /(?=a)b/", False),
        ("lark", 'begin: "a"', False),
        ("regex", "(?<!a)b", False),
        ("bnf", "<a> ::= b", False),
    ],
)
def test_what_is_no_terminal_is_left_to_the_model(syntax: str, definition: str, is_held: bool) -> None:
    assert bool(text_regex(tool(definition, syntax))) == is_held


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        live_service(replace(settings_of(), server=ServerSettings(port=0))) as live,
        httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client,
    ):
        yield client


def custom(definition: str) -> dict[str, Any]:
    return {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": definition},
    }


def asking(definition: str, **fields: Any) -> dict[str, Any]:
    return {"input": "hi", "tools": [custom(definition)], "max_output_tokens": 400, "temperature": 0, **fields}


def test_a_custom_call_is_held_to_its_grammar_whole_and_streamed(client: httpx.Client) -> None:
    body = asking(SMALL, tool_choice={"type": "custom", "name": "patch"}, reasoning={"effort": "none"})
    answer = client.post("/v1/responses", json=body).json()
    (call,) = [item for item in answer["output"] if item["type"] != "reasoning"]
    assert call["type"] == "custom_tool_call"
    assert MATCHES_SMALL.fullmatch(call["input"])
    events = named_events(client.post("/v1/responses", json={**body, "stream": True}).text)
    told = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(told) == call["input"]


@pytest.mark.parametrize("definition", ['start: "a" start | "b"', "start: [", "s: /./", 'start: "x"{0,9999999}'])
def test_a_grammar_that_cannot_be_held_breaks_nothing(client: httpx.Client, definition: str) -> None:
    for choice in ("auto", "required"):
        body = asking(definition, tool_choice=choice, max_output_tokens=20)
        answer = client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
