"""The tables in docs/dialects, made of what is declared beside the fields of the bodies and as kinds of content.

python -m tests.support.http.dialect_docs      writes them into the pages
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct

from interfaces.http.anthropic.conversation import BLOCKS
from interfaces.http.anthropic.messages import MessagesRequest
from interfaces.http.fields.parameters import Parameter, parameters
from interfaces.http.ollama.chat import ChatRequest, GenerateRequest, Options
from interfaces.http.ollama.embed import EmbedRequest
from interfaces.http.openai.chat_request import ChatCompletionRequest, Part
from interfaces.http.openai.completions import CompletionRequest
from interfaces.http.openai.embeddings import EmbeddingRequest
from interfaces.http.openai.rerank import RerankRequest, ScoreRequest
from interfaces.http.responses.items import ITEMS, PARTS
from interfaces.http.responses.request import ResponsesRequest

FOLDER = Path(__file__).parents[3] / "docs" / "dialects"

_OPENAI_PARTS = {str(part.__struct_config__.tag): part for part in get_args(Part)}

PAGES: Mapping[str, tuple[Mapping[str, type[Struct]], Mapping[str, Any]]] = {
    "anthropic.md": ({"parameters": MessagesRequest}, BLOCKS),
    "embeddings.md": (
        {"embeddings": EmbeddingRequest, "rerank": RerankRequest, "score": ScoreRequest, "embed": EmbedRequest},
        {},
    ),
    "ollama.md": ({"parameters": ChatRequest, "generate": GenerateRequest, "options": Options}, {}),
    "openai.md": (
        {"chat": ChatCompletionRequest, "completions": CompletionRequest},
        _OPENAI_PARTS,
    ),
    "responses.md": ({"parameters": ResponsesRequest}, {**ITEMS, **PARTS}),
}
"""A body for each mark of a page, and the kinds of content."""


def page(name: str) -> str:
    """The page with its tables as they have to be."""
    bodies, kinds = PAGES[name]
    text = (FOLDER / name).read_text()
    for mark, body in bodies.items():
        rows = [(f"`{one.name}`", one.support, one.note) for one in _refused_last(body)]
        text = _filled(text, mark, ("parameter", "", "what it does"), rows)
    told = [(f"`{type}`", " ".join((kind.__doc__ or "").split())) for type, kind in kinds.items()]
    return _filled(text, "kinds", ("type", "handling"), told) if told else text


def _refused_last(body: type[Struct]) -> list[Parameter]:
    return sorted(parameters(body), key=lambda one: one.support == "refused")


def _filled(text: str, mark: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
    found = re.search(rf"(<!-- {mark}: .*? -->\n).*?(<!-- end -->)", text, re.DOTALL)
    assert found is not None, f"no place for {mark}"
    return f"{text[: found.start()]}{found[1]}\n{table}\n\n{found[2]}{text[found.end() :]}"


def main() -> None:
    for name in PAGES:
        (FOLDER / name).write_text(page(name))


if __name__ == "__main__":
    main()
