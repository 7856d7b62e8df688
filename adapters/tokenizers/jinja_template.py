"""A chat template in Jinja, rendered piece by piece up to a limit.

transformers compiles it, into its own sandbox; a test compares the renderings on every template of the suite.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from adapters.tokenizers.library import compiled_chat_template

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


class RenderingTooLong(Exception):
    """A rendering was stopped at `num_chars`, more than its limit."""

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
        """The text of all sources."""
        return "\n".join(self._sources.values())

    @cached_property
    def reserved(self) -> frozenset[str]:
        """Names that a client's template arguments may not replace."""
        own: frozenset[str] = frozenset(compiled_chat_template("").environment.globals)
        return _PASSED | _SPECIAL_TOKENS | self._tokens.keys() | own

    def __call__(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        max_chars: int | None = None,
        **arguments: Any,
    ) -> str:
        """Raises RenderingTooLong beyond `max_chars`, and any exception that the template raises."""
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
        for part in compiled_chat_template(self._source_for(tools)).generate(context):
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
