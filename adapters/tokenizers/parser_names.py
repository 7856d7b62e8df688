"""Our families by the names that mlx_lm gives its parsers: the `tool_parser_type` of models that it converted."""

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

__all__ = ("PARSER_NAMES",)
