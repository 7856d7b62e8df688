"""What a model wrote for a call, put back into a conversation and through templates of every kind."""

from pathlib import Path

import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import Tokenizer
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, GeneratedCall, Role, ToolCall, ToolSpec, with_generated
from domain.request.request import ChatPrompt
from tests.support.http.replay.transcripts import told
from tests.support.mlx.tiny_tokenizers import byte_level, load_folder, write_folder
from tests.support.text.output_parsers import numbered_ids

WRITTEN = '{ "b":\t"\\u00e9 \\/ <&\'é{}",  "a" : 10.0 }'
EDITED = '{"a":10,"b":"é / <&\'é{}","c":true}'
GENERATED = GeneratedCall("f", WRITTEN)
TURNS = (
    ChatMessage(Role.USER, "q"),
    ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("call_1", "f", EDITED),)),
    ChatMessage(Role.TOOL, "r", tool_call_id="call_1"),
)

_LOOP = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
)
TEMPLATES = {
    "json": "<{{ c.function.arguments | tojson }}>",
    "indented json": "<{{ c.function.arguments | tojson(indent=2) }}>",
    "ascii json in the whole call": "<{{ c.function | tojson(ensure_ascii=true) }}>",
    "text or json": (
        "{% if c.function.arguments is string %}<{{ c.function.arguments }}>"
        "{% else %}<{{ c.function.arguments | tojson }}>{% endif %}"
    ),
    "text": "{{ '<' + c.function.arguments + '>' }}",
}
MEMBERS = "{% for k, v in c.function.arguments | items %}<{{ k }}={{ v | string }}>{% endfor %}"


def rendered(tmp_path: Path, template: str, *messages: ChatMessage) -> str:
    folder = write_folder(tmp_path / "model", byte_level(), _LOOP.replace("CALL", template))
    tokenizer = load_folder(folder)
    return tokenizer.decode(tokenizer.render(ChatPrompt(messages)).token_ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_arguments_are_rendered_as_they_were_generated(tmp_path: Path, name: str) -> None:
    restored = [with_generated(message, {"call_1": GENERATED}) for message in TURNS]
    text = rendered(tmp_path, TEMPLATES[name], *restored)
    assert WRITTEN in text
    assert "cairn-" not in text


@pytest.mark.parametrize("written", ['{"a": ', "", "not json"])
def test_so_are_those_that_are_no_json(tmp_path: Path, written: str) -> None:
    restored = [with_generated(message, {"call_1": GeneratedCall("f", written)}) for message in TURNS]
    assert f"<{written}>" in rendered(tmp_path, TEMPLATES["json"], *restored)


def test_a_template_that_reads_members_gets_the_generated_ones_in_their_order(tmp_path: Path) -> None:
    restored = [with_generated(message, {"call_1": GENERATED}) for message in TURNS]
    text = rendered(tmp_path, MEMBERS, *restored)
    assert "<b=é / <&'é{}><a=10.0>" in text
    assert "cairn-" not in text


def test_only_the_call_that_was_generated_is_put_back() -> None:
    (_, turn, _) = TURNS
    assert with_generated(turn, {}) is turn
    assert with_generated(turn, {"call_1": GeneratedCall("g", WRITTEN)}) is turn
    guessable = GeneratedCall("f", WRITTEN, is_own_id=False)
    assert with_generated(turn, {"call_1": guessable}) is turn
    (same,) = with_generated(
        turn, {"call_1": GeneratedCall("f", '{"a": 10, "b": "é / <&\'é{}", "c": true}', "", False)}
    ).tool_calls
    assert same.is_generated


def test_reasoning_comes_back_with_the_call_and_a_clients_own_stays_without() -> None:
    (_, turn, _) = TURNS
    assert with_generated(turn, {"call_1": GeneratedCall("f", WRITTEN, "thought")}).reasoning == "thought"
    kept = ChatMessage(Role.ASSISTANT, reasoning="theirs", tool_calls=turn.tool_calls)
    assert with_generated(kept, {"call_1": GENERATED}).reasoning == "theirs"


@pytest.mark.parametrize("id", EMBEDDED_IDS)
def test_on_an_embedded_model_the_next_prompt_begins_with_the_tokens_that_were_generated(id: str) -> None:
    model: Tokenizer = HfTokenizerLoader().load(ModelSource(id, str(embedded_folder(id))))  # type: ignore[arg-type]
    question = ChatMessage(Role.USER, "List the files.")
    prompt = ChatPrompt((question,), (ToolSpec("f", "", {"type": "object"}),))
    answer = f'I look.\n<tool_call>\n{{"name": "f", "arguments": {WRITTEN}}}\n</tool_call>'
    prompt_ids, answer_ids = model.render(prompt).token_ids, model.encode(answer).token_ids
    parser = model.output_parser(prompt, prompt_ids, numbered_ids())
    found = told([*(delta for token in answer_ids for delta in parser.feed(token)), *parser.finish()])
    ((call_id, name, arguments),) = found.calls
    assert arguments == WRITTEN
    sent = ChatMessage(Role.ASSISTANT, found.text, tool_calls=(ToolCall(call_id, name, EDITED),))
    for known, is_kept in (({call_id: GeneratedCall(name, arguments)}, True), ({}, False)):
        turns = (question, with_generated(sent, known), ChatMessage(Role.TOOL, "r", tool_call_id=call_id))
        again = model.render(ChatPrompt(turns, prompt.tools)).token_ids
        assert (again[: len(prompt_ids) + len(answer_ids)] == (*prompt_ids, *answer_ids)) is is_kept
