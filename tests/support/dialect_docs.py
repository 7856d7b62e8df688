"""The tables in docs/dialects, made of what is declared beside the fields of the bodies and as kinds of content.

python -m tests.support.dialect_docs      writes them into the pages
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from interfaces.http.anthropic.blocks import BLOCKS
from interfaces.http.anthropic.messages_request import MessagesRequest
from interfaces.http.ollama.bodies import ChatRequest, GenerateRequest
from interfaces.http.ollama.options import Options
from interfaces.http.parameters import parameters
from interfaces.http.responses.items import ITEMS, PARTS
from interfaces.http.responses.responses_request import ResponsesRequest

FOLDER = Path(__file__).parents[2] / "docs" / "dialects"

PAGES: Mapping[str, tuple[type[Struct], Mapping[str, Any]]] = {
    "ollama.md": (ChatRequest, {}),
    "anthropic.md": (MessagesRequest, BLOCKS),
    "responses.md": (ResponsesRequest, {**ITEMS, **PARTS}),
}


MORE_TABLES: Mapping[str, Mapping[str, type[Struct]]] = {
    "ollama.md": {"generate": GenerateRequest, "options": Options},
}
"""Other bodies on the page, by the mark of their table."""


def page(name: str) -> str:
    """The page with its tables as they have to be."""
    body, kinds = PAGES[name]
    text = (FOLDER / name).read_text()
    rows = [(f"`{one.name}`", one.support, one.note) for one in parameters(body)]
    text = _filled(text, "parameters", ("parameter", "", "what it does"), rows)
    told = [(f"`{type}`", " ".join((kind.__doc__ or "").split())) for type, kind in kinds.items()]
    for mark, more in MORE_TABLES.get(name, {}).items():
        rows = [(f"`{one.name}`", one.support, one.note) for one in parameters(more)]
        text = _filled(text, mark, ("parameter", "", "what it does"), rows)
    return _filled(text, "kinds", ("type", "what becomes of it"), told) if told else text


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
