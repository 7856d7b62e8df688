"""Families whose calls mlx_lm's own parsers read, whole, and the names under which it knows families of ours.

A converted model's `tool_parser_type` names one of these.
"""

from collections.abc import Sequence
from typing import Any, cast

from adapters.tokenizers.library import tool_parser
from domain.chat import ToolSpec
from domain.output.families import FAMILIES
from domain.output.family import Family, Section
from domain.output.whole_calls import ParsedCall, WholeCalls

NAMES = {
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
"""Our families by `tool_parser_type`."""


def _parse_kimi_k3(text: str, tools: Sequence[ToolSpec]) -> Sequence[ParsedCall]:
    return _parse("kimi_k3", text, tools)


_KIMI_K3 = Family(
    "kimi_k3",
    "<|open|>call tool=NAME, read by mlx-lm",
    (("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),),
    (Section("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", (WholeCalls(_parse_kimi_k3),)),),
)

ALL_FAMILIES = (_KIMI_K3, *FAMILIES)


def _parse(name: str, text: str, tools: Sequence[ToolSpec]) -> Sequence[ParsedCall]:
    """Raises ValueError, whatever the parser raises."""
    functions = [
        {"type": "function", "function": {"name": tool.name, "parameters": dict(tool.parameters)}} for tool in tools
    ]
    try:
        found = tool_parser(name).parse_tool_call(text, functions)
        calls = cast("list[dict[str, Any]]", found if isinstance(found, list) else [found])
        return [(str(call["name"]), dict(cast("dict[str, Any]", call["arguments"]))) for call in calls]
    except Exception as error:
        raise ValueError(f"mlx_lm could not read the calls: {type(error).__name__}") from error


__all__ = ("ALL_FAMILIES", "NAMES")
