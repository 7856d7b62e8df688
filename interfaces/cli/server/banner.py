"""What `cairn serve` tells once it can answer: where it is, how to ask, what computes, where data is kept."""

import json
import shlex
from collections.abc import Sequence

from application.ports.tokenizer import TemplateFeatures, Tokenizer
from application.settings import Settings
from domain.byte_size import format_bytes
from domain.models.model_card import DecodeMode, ModelDescription

QUESTION = "My cat is called Miso. What is my cat called?"
"""Within the abilities of the embedded model, which knows nothing that it is not told."""


def banner(
    settings: Settings,
    base_url: str,
    model: ModelDescription,
    tokenizer: Tokenizer,
    facts: Sequence[tuple[str, str]],
) -> str:
    """`base_url` without a path. `facts`: further lines, as (name, text)."""
    template = describe_template(tokenizer.template_features)
    rows = [("model", describe_model(model)), ("template", template), ("answers", tokenizer.output_format)]
    rows += [("pages", f"{base_url}/chat to talk to it, {base_url}/admin to watch it"), *facts]
    lines = [f"Cairn serves {model.id} at {base_url}/v1", "", *curl_lines(settings, base_url, model.id), ""]
    return "\n".join(lines + [f"  {name:<8} {text}" for name, text in rows])


def curl_lines(settings: Settings, base_url: str, model: str) -> list[str]:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": QUESTION}]})
    key = " -H 'authorization: Bearer YOUR-KEY'" if settings.server.needs_key else ""
    return [
        f"  curl {base_url}/v1/chat/completions -H 'content-type: application/json'{key} \\",
        f"    -d {shlex.quote(body)}",
    ]


def describe_template(features: TemplateFeatures | None) -> str:
    """`tools, reasoning, no late system messages (told as a user's)`: what the chat template shows to the model."""
    if features is None:
        return "none: completions only"
    tools = "tools" if features.tools else "no tools"
    reasoning = "reasoning" if features.reasoning else "no reasoning"
    late = "late system messages" if features.late_system else "no late system messages (told as a user's)"
    return f"{tools}, {reasoning}, {late}"


def describe_model(model: ModelDescription) -> str:
    """`cairn-demo: float32, 43.1 MiB of weights, context of 2048 tokens`, and why it decodes singly if it does."""
    text = f"{model.id}: {model.dtype}, {format_bytes(model.weight_bytes)}, context of {model.context_length} tokens"
    if model.decode_mode is DecodeMode.SINGLE:
        text += f", one sequence at a time ({model.decode_note or 'batching unsupported'})"
    return text
