"""Parsers for transcripts: over text, and over the real tokens of a tiny tokenizer with a family's markers added."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken

from application.ports.tokenizer import Tokenizer
from domain.output.family import with_marks
from domain.output.output_format import PreparedFormat, choose_format, family_named, prepare_format
from domain.output.text_parser import TextParser
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.request import ChatPrompt
from domain.request.stream import ContentDelta
from tests.support.http.replay.transcripts import TOOLS, Told, Transcript, told
from tests.support.mlx.tiny_tokenizers import byte_level, load_folder, write_folder


def numbered_ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"call_{next(numbers):09d}"


def text_parser(
    case: Transcript, *, tools: Sequence[ToolSpec] = TOOLS, taken_ids: Iterable[str] = ()
) -> tuple[TextParser, str]:
    """The parser for a transcript, and its answer with special tokens as marks."""
    parser = TextParser(
        _format(case),
        new_call_id=numbered_ids(),
        tools=tools,
        prompt_end=case.prompt_end,
        taken_ids=taken_ids,
    )
    return parser, marked(case.answer, case)


def marked(answer: str, case: Transcript) -> str:
    """The answer with the transcript's special tokens as marks."""
    return with_marks(answer, _format(case).marks)


def _format(case: Transcript) -> PreparedFormat:
    family = family_named(case.family)
    return prepare_format(choose_format(case.template, (*case.special, *case.marks), family=family), case.special)


def parsed(parser: TextParser, pieces: Iterable[str]) -> Told:
    deltas: list[ContentDelta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    return told([*deltas, *parser.finish()])


def model_of(case: Transcript, folder: Path) -> Tokenizer:
    """A tokenizer with the transcript's markers, and a chat template that shows them and opens the answer."""
    tiny = byte_level()
    tiny.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in case.special])
    tiny.add_tokens([AddedToken(token, special=False, normalized=False) for token in case.marks])
    turns = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
    shown = "{# " + case.template + " #}"
    template = shown + turns + "{% if add_generation_prompt %}{{ " + repr(case.prompt_end) + " }}{% endif %}"
    return load_folder(write_folder(folder, tiny, template))


def told_by(tokenizer: Tokenizer, case: Transcript, tools: Sequence[ToolSpec] = TOOLS) -> Told:
    """What the answer's tokens say."""
    prompt = ChatPrompt((ChatMessage(Role.USER, "How is it in Bern?"),), tuple(tools))
    parser = tokenizer.output_parser(prompt, tokenizer.render(prompt).token_ids, numbered_ids())
    deltas: list[ContentDelta] = []
    for token_id in tokenizer.encode(case.answer).token_ids:
        deltas += parser.feed(token_id)
    return told([*deltas, *parser.finish()])
