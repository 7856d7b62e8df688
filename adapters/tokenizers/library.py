"""The untyped libraries behind this adapter: Protocols of the few methods in use, and deferred imports.

Importing transformers takes about a second, so it happens on the first load and not with this module. Importing any
part of mlx_lm lowers the process's limit of open files; the limit is restored.
"""

import importlib
import os
import resource
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast


class Encoding(Protocol):
    """An encoded text of the Rust tokenizer. `ids`: a new list at each call."""

    ids: list[int]


class AddedToken(Protocol):
    content: str
    special: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    single_word: bool


class RustTokenizer(Protocol):
    """`tokenizers.Tokenizer`. Encoding and decoding are safe from any thread.

    Only the batch calls let other threads run: `encode` and `decode` hold the interpreter to their end.
    `encode_batch_fast` gives no spans.
    """

    decoder: Any
    model: Any
    normalizer: Any
    pre_tokenizer: Any

    def encode(self, text: str, pair: str | None = None, *, add_special_tokens: bool) -> Encoding: ...
    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[Encoding]: ...
    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Encoding]: ...
    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...
    def decode_batch(self, sequences: list[list[int]], *, skip_special_tokens: bool) -> list[str]: ...
    def id_to_token(self, id: int) -> str | None: ...
    def token_to_id(self, token: str) -> int | None: ...
    def get_added_tokens_decoder(self) -> Mapping[int, AddedToken]: ...
    def no_truncation(self) -> None: ...
    def no_padding(self) -> None: ...


class PythonTokenizer(Protocol):
    """A tokenizer object of transformers."""

    init_kwargs: dict[str, Any]
    chat_template: Any
    special_tokens_map: Mapping[str, str]
    is_fast: bool
    all_special_ids: list[int]
    added_tokens_decoder: Mapping[int, AddedToken]
    eos_token_id: int | list[int] | None

    def get_vocab(self) -> dict[str, int]: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], **options: bool) -> str: ...
    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any: ...


@contextmanager
def _advice_silenced() -> Generator[None]:
    """Silence the warning of transformers that PyTorch is absent, as it should be here."""
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def open_files_limit_kept() -> Generator[None]:
    """Restore RLIMIT_NOFILE after importing mlx_lm, up to the hard limit that it leaves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    finally:
        if resource.getrlimit(resource.RLIMIT_NOFILE) != (soft, hard):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            except ValueError:
                _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, allowed), allowed))


def load_tokenizer(folder: str) -> PythonTokenizer:
    """Load from a local folder, without the network and without running the folder's own code.

    AutoTokenizer checks all of config.json on the way and refuses models that it does not know or knows otherwise than
    mlx-lm does; their tokenizer.json needs none of that.
    """
    with _advice_silenced():
        transformers: Any = importlib.import_module("transformers")
        try:
            loaded = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        except Exception:
            if not (Path(folder) / "tokenizer.json").is_file():
                raise
            loaded = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return cast(PythonTokenizer, loaded)


def rust_tokenizer(tokenizer: PythonTokenizer) -> RustTokenizer | None:
    """Returns the Rust tokenizer inside; None without one, or where a Python class around it changes texts."""
    if not tokenizer.is_fast:
        return None
    for owner in type(tokenizer).__mro__:
        if owner.__module__.startswith("transformers.tokenization_utils"):
            break
        if {"encode", "decode", "_encode_plus", "_decode"} & owner.__dict__.keys():
            return None
    # The library's own threads are as many as there are processors, and their use makes it complain of every fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    rust = cast(RustTokenizer, cast(Any, tokenizer).backend_tokenizer)
    rust.no_truncation()
    rust.no_padding()
    if _is_byte_level(rust.pre_tokenizer) and not _is_byte_level(rust.decoder):
        rust.decoder = importlib.import_module("tokenizers").decoders.ByteLevel()
    return rust


def _is_byte_level(part: Any) -> bool:
    """True if a part writes bytes as characters. Some conversions of byte-level vocabularies have the decoder of a
    SentencePiece model, which leaves those characters in the text."""
    return part is not None and b'"ByteLevel"' in bytes(part.__getstate__())


def new_rust_tokenizer(like: RustTokenizer, names: Mapping[str, str]) -> RustTokenizer:
    """Returns a tokenizer that shares the parts of another and has its added tokens, those in `names` under other
    names. Ids of added tokens differ."""
    tokenizers: Any = importlib.import_module("tokenizers")
    made: Any = tokenizers.Tokenizer(like.model)
    if like.normalizer is not None:
        made.normalizer = like.normalizer
    if like.pre_tokenizer is not None:
        made.pre_tokenizer = like.pre_tokenizer
    made.add_tokens(
        [
            tokenizers.AddedToken(
                names.get(one.content, one.content),
                single_word=one.single_word,
                lstrip=one.lstrip,
                rstrip=one.rstrip,
                normalized=one.normalized,
            )
            for _, one in sorted(like.get_added_tokens_decoder().items())
        ]
    )
    return cast(RustTokenizer, made)


def compiled_chat_template(source: str) -> Any:
    """Returns a Jinja template, compiled in the sandbox of transformers, which caches it. Raises jinja2's errors."""
    utils: Any = importlib.import_module("transformers.utils.chat_template_utils")
    return utils._compile_jinja_template(source)


def python_chat_template(name: str) -> Any:
    """Returns a chat template that mlx_lm has as Python code, by the name in a model's configuration."""
    if not name.isidentifier():
        raise ValueError(f"chat_template_type {name!r} is not a name")
    with open_files_limit_kept(), _advice_silenced():
        module: ModuleType = importlib.import_module(f"mlx_lm.chat_templates.{name}")
    return getattr(module, "apply_chat_template", None)
