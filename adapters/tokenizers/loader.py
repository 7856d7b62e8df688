"""Loads a model folder's tokenizer, chat template and end tokens. Any thread; blocking, and slow the first time."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from adapters.tokenizers.chat_template import ChatTemplate
from adapters.tokenizers.control_tokens import ControlTokens, control_texts
from adapters.tokenizers.hf_tokenizer import HfTokenizer
from adapters.tokenizers.jinja_template import JinjaTemplate, RenderingTooLong
from adapters.tokenizers.library import (
    PythonTokenizer,
    RustTokenizer,
    load_tokenizer,
    python_chat_template,
    rust_tokenizer,
)
from adapters.tokenizers.text_codec import TextCodec
from adapters.tokenizers.token_bytes import token_bytes_of
from application.ports.tokenizer import Tokenizer
from domain.errors import ModelLoadFailed
from domain.models.capability import ModelUse
from domain.models.end_tokens import end_ids
from domain.models.model_card import ModelSource
from domain.output.family import Family
from domain.output.output_format import OutputFormat, choose_format, family_named
from domain.printable import printable

PARSER_NAMES = {
    "function_gemma": "function_gemma",
    "gemma4": "gemma4",
    "glm47": "glm",
    "json_tools": "hermes",
    "kimi_k2": "kimi_k2",
    "kimi_k3": "kimi_k3",
    "laguna": "glm",
    "longcat": "longcat",
    "minicpm5": "minicpm5",
    "minimax_m2": "minimax_m2",
    "mistral": "mistral",
    "muse_spark": "muse_spark",
    "pythonic": "lfm2",
    "qwen3_coder": "qwen_xml",
}
"""Families by the names of mlx_lm's parsers, the `tool_parser_type` of models that it converted."""


class HfTokenizerLoader:
    """Loads tokenizers by transformers from local folders, without the network and without the folder's own code.

    `parsers`: families of output formats by model id, in place of those that are found. Raises InvalidRequest for an
    unknown family.
    """

    def __init__(self, parsers: Mapping[str, str] | None = None) -> None:
        self._parsers = {model: family_named(name) for model, name in (parsers or {}).items()}

    def load(self, source: ModelSource) -> Tokenizer:
        folder = Path(source.path)
        if not folder.is_dir():
            raise ModelLoadFailed(f"{source.id}: {folder} is not a folder")
        try:
            return _load(folder, self._parsers.get(source.id), source.use)
        except Exception as error:
            reason = str(error).strip().split("\n", maxsplit=1)[0]
            raise ModelLoadFailed(
                f"{source.id}: its tokenizer could not be loaded ({type(error).__name__}: {reason})"
            ) from error


def _load(folder: Path, family: Family | None, use: ModelUse) -> HfTokenizer:
    tokenizer = load_tokenizer(str(folder))
    rust = rust_tokenizer(tokenizer)
    codec = TextCodec(tokenizer, rust)
    if not any(map(str.isalnum, codec.decode(codec.encode(_PROBE_TEXT), skip_special=True))):
        raise ValueError(f"{folder} has no vocabulary, such as a tokenizer.json; download the model again")
    token_bytes = token_bytes_of(rust) if rust is not None else None
    if token_bytes is not None and not _agrees(token_bytes, codec):
        token_bytes = None
    template, source = _chat_template(folder, tokenizer)
    named = PARSER_NAMES.get(str(tokenizer.init_kwargs.get("tool_parser_type")))
    if family is None and named is not None:
        family = family_named(named)
    output = choose_format(source, codec.added_tokens, family=family)
    controls, defect = _controls(rust, template.written if template is not None else "", output)
    if template is not None and controls is not None:
        changed = template.separate(controls)
        defect = defect or changed
    is_at_risk = defect and (template is not None or use.is_pooled)
    ends, misread = _ends(folder, tokenizer, template, codec.special_tokens, output.family)
    notes = (
        f"text in messages can act as control tokens: {defect}" if is_at_risk else "",
        misread,
        template.note if template is not None else "",
    )
    return HfTokenizer(
        codec,
        eos_token_ids=ends,
        template=template,
        token_bytes=token_bytes,
        output=output,
        note="; ".join(filter(None, notes)),
        controls=controls,
        use=use,
    )


def _controls(rust: RustTokenizer | None, written: str, output: OutputFormat) -> tuple[ControlTokens | None, str]:
    """Returns what keeps text of clients from acting as control tokens, None where that is not possible, and the
    reason if it fails in whole or in part."""
    if rust is None:
        return None, "the tokenizer has no Rust implementation"
    try:
        controls = ControlTokens(rust, control_texts(rust, written), output.reasoning_texts or ())
        return controls, controls.defect()
    except Exception as error:
        return None, f"{type(error).__name__}: {printable(str(error))}"


_PROBE_TEXT = ' Probe: "naïve" 漢字 😀\n\n  two  spaces, 3.14\t<tag>'


def _agrees(token_bytes: Callable[[int], bytes], codec: TextCodec) -> bool:
    """Returns True if the bytes of tokens, joined, are the tokenizer's own text; if not, its decoder was misread."""
    ids = codec.encode(_PROBE_TEXT)
    special_ids = set(codec.special_tokens.values())
    text = b"".join(token_bytes(id) for id in ids if id not in special_ids).decode("utf-8", "replace")
    decoded = codec.decode(ids, skip_special=True)
    return text in (decoded, f" {decoded}")  # some decoders drop the space at the start


def _ends(
    folder: Path, tokenizer: PythonTokenizer, template: ChatTemplate | None, special: Mapping[str, int], family: Family
) -> tuple[frozenset[int], str]:
    """Returns the tokens that end an answer, and a warning. They are those that any file names, and the first special
    token that the template writes behind an answer, unless an answer of several messages has it between them."""
    note, generation = "", dict[str, Any]()
    try:
        generation = _read_json(folder / "generation_config.json")
    except (OSError, ValueError, RecursionError) as error:
        note = f"its generation_config.json is left out: {printable(str(error))}"
    ends = end_ids(_read_json(folder / "config.json"), generation, {"eos_token_id": tokenizer.eos_token_id})
    behind = template.behind_answer() if template is not None else ""
    between = (family.channels.ends[0], family.channels.start) if family.channels is not None else ()
    written = {text: at for text in special if text not in between and (at := behind.find(text)) >= 0}
    first = min(written, key=lambda text: (written[text], -len(text)), default="")
    return ends | ({special[first]} if first else frozenset[int]()), note


def _chat_template(folder: Path, tokenizer: PythonTokenizer) -> tuple[ChatTemplate | None, str]:
    """Returns the template from the tokenizer's files, from chat_template.json of older vision models, or from mlx_lm
    by name; with its source, where that is known."""
    name = tokenizer.init_kwargs.get("chat_template_type")
    if isinstance(name, str) and (apply := python_chat_template(name)) is not None:
        return ChatTemplate(_bounded(cast("Callable[..., str]", apply)), ""), _source_of(tokenizer)
    if not tokenizer.chat_template:
        tokenizer.chat_template = _read_json(folder / "chat_template.json").get("chat_template")
    if not type(tokenizer).apply_chat_template.__module__.startswith("transformers.tokenization_utils"):
        source = _source_of(tokenizer)
        return ChatTemplate(_bounded(partial(tokenizer.apply_chat_template, tokenize=False)), source), source
    if not tokenizer.chat_template:
        return None, ""
    template = JinjaTemplate(tokenizer.chat_template, tokenizer.special_tokens_map)
    return ChatTemplate(template, template.source, template.reserved), template.source


def _source_of(tokenizer: PythonTokenizer) -> str:
    templates = tokenizer.chat_template
    return JinjaTemplate(templates, {}).source if templates else ""


def _bounded(apply: Callable[..., str]) -> Callable[..., str]:
    """Returns a renderer with a limit for a template that is Python code and renders in one piece."""

    def applied(conversation: list[dict[str, Any]], *, max_chars: int | None = None, **options: Any) -> str:
        text = str(apply(conversation, **options))
        if max_chars is not None and len(text) > max_chars:
            raise RenderingTooLong(len(text))
        return text

    return applied


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is no such file."""
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
