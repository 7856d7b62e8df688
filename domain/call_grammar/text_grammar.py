"""A tool's own grammar of the one text that it takes, as a terminal in a call.

Held as far as it can be told as one (`regular_lark`): else the text is free, as the model was told what to write.
"""

import re
from collections.abc import Mapping

from domain.call_grammar.regular_lark import RegularGrammar, regular_grammar, written_regex
from domain.errors import InvalidRequest
from domain.request.chat import ToolSpec

MAX_CHARS = 16 * 1024
"""Of a grammar that is held: reading one takes some microseconds a character. Codex's has one thousand."""

_ENDS = re.compile(r"\A\^?(.*?)\$?\Z", re.DOTALL)


def text_parameter(tool: ToolSpec) -> str:
    """The name of the parameter that the tool's grammar holds; "" where there is none."""
    names = tool.parameters.get("properties")
    return next(iter(names)) if tool.text_grammar is not None and isinstance(names, Mapping) and len(names) == 1 else ""


def text_terminal(tool: ToolSpec, prefix: str, *, is_quoted: bool) -> RegularGrammar | None:
    """What the text may be, as it stands or in JSON's quotes; None where that is free. `prefix`: begins the names of
    the rules, in capitals."""
    told = tool.text_grammar
    if told is None or not text_parameter(tool) or len(told.definition) > MAX_CHARS:
        return None
    try:
        if told.syntax == "lark":
            return regular_grammar(told.definition, prefix, is_quoted=is_quoted)
        if told.syntax == "regex":
            inner = _ENDS.sub(r"\1", told.definition, count=1)
            return RegularGrammar(prefix, [f"{prefix}: /{written_regex(inner, is_quoted=is_quoted)}/"])
    except InvalidRequest:
        pass
    return None


def has_held_text(tool: ToolSpec) -> bool:
    """Whether the tool's text is held to its grammar, however it is written."""
    return all(text_terminal(tool, "TEXT", is_quoted=is_quoted) for is_quoted in (False, True))
