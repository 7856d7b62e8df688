"""The banner and the log lines of the CLI."""

import json
import logging
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from adapters.fake.tokenizer import FakeTokenizer
from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from application.settings import ServerSettings, Settings
from domain.ids import ModelId
from domain.models.capability import GENERATES, Capability
from domain.models.model_card import ContextLength, DecodeMode, ModelDescription
from domain.models.state_layout import StateLayout
from interfaces.cli.server.server_process import banner
from interfaces.cli.terminal.logs import JsonFormatter, PlainFormatter
from interfaces.cli.terminal.options import parse_tokens
from tests.support.mlx.tiny_tokenizers import load_folder

MODEL = ModelDescription(
    id=ModelId("it's"),
    model_type="llama",
    vocab_size=10,
    context=ContextLength(8192),
    eos_token_ids=frozenset(),
    dtype="float32",
    weight_bytes=44 * 2**20,
    layout=StateLayout(()),
    decode_mode=DecodeMode.SINGLE,
    decode_note="the probe differed",
)


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    information = (type(error), error, None) if error else None
    return logging.LogRecord("cairn.engine", logging.WARNING, "f.py", 1, message, arguments, information)


def unwrapped(text: str) -> str:
    """The banner with each of its facts on one line."""
    return re.sub(r"\n {11}", " ", text)


def test_banner_holds_what_is_needed():
    printed = banner(Settings(), "http://127.0.0.1:9", MODEL, FakeTokenizer(), [("device", "cpu"), ("data", "/data")])
    assert max(map(len, printed.splitlines())) <= 80
    text = unwrapped(printed)
    assert text.splitlines()[0] == "Cairn serves it's at http://127.0.0.1:9/v1"
    assert "it's: float32, 44 MiB, context of 8192 tokens, one sequence at a time (the probe differed)" in text
    assert "  template tools, reasoning, no late system messages (sent as user messages)\n" in text
    assert f"  answers  {FakeTokenizer().output_format}\n" in text
    assert "  pages    http://127.0.0.1:9/chat to talk to it, http://127.0.0.1:9/admin to watch it\n" in text
    assert re.search(r"^  device   cpu$", text, re.MULTILINE)
    assert re.search(r"^  data     /data$", text, re.MULTILINE)


@pytest.mark.parametrize("id", EMBEDDED_IDS)
def test_the_banner_of_a_real_model_names_its_parsers_and_template(id: ModelId):
    tokenizer = load_folder(Path(embedded_folder(id) or ""))
    text = unwrapped(banner(Settings(), "http://127.0.0.1:9", MODEL, tokenizer, []))
    assert "  template tools, reasoning, late system messages\n" in text
    assert "  answers  hermes (<tool_call>JSON; from its chat template), reasoning: <think>...</think>\n" in text


@pytest.mark.parametrize(
    ("can", "path", "field"),
    [(Capability.EMBED, "embeddings", "input"), (Capability.SCORE, "rerank", "documents")],
)
def test_the_banner_of_a_model_that_does_not_chat_shows_what_it_does(can: Capability, path: str, field: str):
    text = banner(Settings(), "http://127.0.0.1:9", MODEL, FakeTokenizer(), [], frozenset({can}))
    words = shlex.split(text[text.index("curl") : text.index("  model")])
    assert words[1] == f"http://127.0.0.1:9/v1/{path}"
    assert field in json.loads(words[words.index("-d") + 1])
    assert "template" not in text


def test_the_banner_of_a_model_that_sees_shows_it_a_picture():
    text = banner(Settings(), "http://127.0.0.1:9", MODEL, FakeTokenizer(), [], GENERATES | {Capability.SEE})
    words = shlex.split(text[text.index("curl") : text.index("  model")])
    assert words[1] == "http://127.0.0.1:9/v1/chat/completions"
    picture, question = json.loads(words[words.index("-d") + 1])["messages"][0]["content"]
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")
    assert question["text"].endswith("?")


@pytest.mark.parametrize("key", [None, "secret"])
def test_curl_line_is_a_command_that_asks_the_model(key: str | None):
    settings = Settings(server=ServerSettings(api_key=key))
    text = banner(settings, "http://127.0.0.1:9", MODEL, FakeTokenizer(), [])
    words = shlex.split(text[text.index("curl") : text.index("  model")])
    assert words[:2] == ["curl", "http://127.0.0.1:9/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's"
    assert body["messages"][0]["role"] == "user"
    assert ("authorization: Bearer YOUR-KEY" in words) is (key is not None)
    assert "secret" not in text


def test_plain_log_line():
    line = PlainFormatter().format(record("%d of %d", 1, 2))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} WARNING cairn\.engine: 1 of 2", line)


def test_json_log_line():
    fields = json.loads(JsonFormatter().format(record("two\nlines and “quotes”")))
    assert fields.pop("time").endswith("+00:00")
    assert fields == {"level": "warning", "logger": "cairn.engine", "message": "two\nlines and “quotes”"}


def test_json_log_line_with_an_error_is_still_one_line():
    try:
        raise ValueError("bad")
    except ValueError:
        entry = logging.LogRecord("cairn", logging.ERROR, "f.py", 1, "failed", (), sys.exc_info())
    line = JsonFormatter().format(entry)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: bad")


def test_a_message_cannot_forge_a_log_line():
    forged = "2026-11-21 10:00:00.000 INFO cairn.engine: all is well"
    try:
        raise ValueError(f"bad\n{forged}")
    except ValueError:
        entry = logging.LogRecord(
            "cairn", logging.ERROR, "f.py", 1, "name %s", (f"a\r\n{forged}\x1b[2J",), sys.exc_info()
        )
    lines = re.split(r"[\r\n]", PlainFormatter().format(entry))
    assert [line for line in lines if re.match(r"\d{4}-", line)] == [lines[0]]
    assert "\x1b" not in lines[0]
    assert any(line.endswith("ValueError: bad") for line in lines)


def test_tokens_as_people_write_them():
    assert [parse_tokens(text) for text in ("1", "32768", "128k", "1M")] == [1, 32_768, 131_072, 2**20]
    for text in ("", "0", "-1", "1.5k", "k", "9999999m"):
        with pytest.raises(typer.Exit):
            parse_tokens(text)
