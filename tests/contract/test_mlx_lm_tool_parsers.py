"""mlx_lm's parsers and ours agree on what the families write, and every parser that mlx_lm has is known by name."""

import importlib
import pkgutil

import mlx_lm.tool_parsers
import pytest

from adapters.tokenizers.loader import PARSER_NAMES
from tests.support.http.replay.transcripts import TOOLS, TRANSCRIPTS

_CASES = [
    ("json_tools", "hermes"),
    ("qwen3_coder", "qwen3_coder"),
    ("glm47", "glm"),
    ("longcat", "longcat"),
    ("pythonic", "lfm2"),
    ("kimi_k2", "kimi_k2"),
    ("kimi_k3", "kimi_k3"),
    ("mistral", "mistral_v3"),
    ("minimax_m2", "minimax_m2"),
    ("minicpm5", "minicpm5"),
    ("muse_spark", "muse_spark"),
    ("function_gemma", "function_gemma"),
    ("gemma4", "gemma4"),
]


def test_every_parser_of_mlx_lm_is_known() -> None:
    assert {module.name for module in pkgutil.iter_modules(mlx_lm.tool_parsers.__path__)} == PARSER_NAMES.keys()


@pytest.mark.parametrize(("parser", "transcript"), _CASES)
def test_first_call(parser: str, transcript: str) -> None:
    case, module = TRANSCRIPTS[transcript], importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    body = case.answer.split(module.tool_call_start, 1)[1]
    body = body.split(module.tool_call_end, 1)[0] if module.tool_call_end else body
    tools = [{"function": {"name": tool.name, "parameters": dict(tool.parameters)}} for tool in TOOLS]
    found = module.parse_tool_call(body, tools)
    first = found[0] if isinstance(found, list) else found
    assert (first["name"], first["arguments"]) == case.calls[0]
