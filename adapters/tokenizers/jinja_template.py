"""A chat template in Jinja, rendered as transformers renders it, piece by piece up to a bound.

The environment is that of transformers (`utils/chat_template_utils`): a sandbox, loop controls, `{% generation %}`,
`tojson` without escapes for HTML. A test compares the two on every template of the suite.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, cast

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_PASSED = frozenset({"add_generation_prompt", "documents", "messages", "tools"})
_SPECIAL_TOKENS = frozenset(
    {
        "additional_special_tokens",
        "bos_token",
        "cls_token",
        "eos_token",
        "extra_special_tokens",
        "mask_token",
        "pad_token",
        "sep_token",
        "unk_token",
    }
)
_MAX_COMPILED = 64


class RenderingTooLong(Exception):
    """A rendering was stopped at `num_chars`, more than the bound."""

    def __init__(self, num_chars: int) -> None:
        super().__init__(f"more than {num_chars} characters")
        self.num_chars = num_chars


class JinjaTemplate:
    """One source, or several by name as a tokenizer's files have them. Any thread.

    `tokens`: the special tokens that templates read by name, such as `bos_token`.
    """

    def __init__(self, sources: str | Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self._sources = {"default": sources} if isinstance(sources, str) else dict(sources)
        self._tokens = dict(tokens)

    @property
    def source(self) -> str:
        """The text of all of them."""
        return "\n".join(self._sources.values())

    @property
    def reserved(self) -> frozenset[str]:
        """Names that a client's template arguments may not replace."""
        return _PASSED | _SPECIAL_TOKENS | self._tokens.keys() | _ENVIRONMENT.globals.keys()

    def __call__(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        max_chars: int | None = None,
        **arguments: Any,
    ) -> str:
        """Raises RenderingTooLong beyond `max_chars`, and whatever the template does."""
        context = {
            **self._tokens,
            **arguments,
            "messages": conversation,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        parts: list[str] = []
        num_chars = 0
        for part in _compiled(self._source_for(tools)).generate(context):
            num_chars += len(part)
            if max_chars is not None and num_chars > max_chars:
                raise RenderingTooLong(num_chars)
            parts.append(part)
        return "".join(parts)

    def _source_for(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if tools is not None and "tool_use" in self._sources:
            return self._sources["tool_use"]
        if "default" in self._sources:
            return self._sources["default"]
        raise ValueError(f"the model has several chat templates and none named default: {sorted(self._sources)}")


class _Generation(Extension):
    """The tag that marks what a model wrote, for training: its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.CallBlock:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return cast(nodes.CallBlock, nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno))

    def _body(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict` in a template: a class would give access to its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` in a template, without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, attributes = args[0], dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        Namespace.__setitem__(self, name, value)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    own: dict[str, Any] = environment.globals
    own |= {"raise_exception": _raise, "strftime_now": _strftime_now, "dict": _Dict(), "namespace": _Namespace}
    return environment


_ENVIRONMENT = _environment()


@lru_cache(_MAX_COMPILED)
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)
