"""A docstring's first sentence has a main clause or is a noun phrase: no relative clause stands for a sentence."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cairn", "domain", "application", "adapters", "interfaces")

RELATIVE = re.compile(r"(What|Who|Whom|Whose|Whoever|Whatever|Whether|Which|How|Why|Where|When|Of|That)\b")
"""A clause that begins so has a main clause behind it only after a comma."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings of a module: its own, those of classes and functions, and those below assignments."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        above: ast.stmt | None = None
        for position, statement in enumerate(body):
            text = statement.value if isinstance(statement, ast.Expr) else None
            is_documented = position == 0 or isinstance(above, ast.Assign | ast.AnnAssign)
            if is_documented and isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield statement.lineno, text.value
            above = statement


def is_relative(docstring: str) -> bool:
    sentence = re.split(r"[.:;](?:\s|$)", docstring.strip(), maxsplit=1)[0]
    return RELATIVE.match(sentence) is not None and "," not in sentence


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_begins_with_a_relative_clause(package: str):
    found = [
        f"{source.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for source in sorted((ROOT / package).rglob("*.py"))
        for line, text in docstrings(source.read_text())
        if is_relative(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("docstring", "is_refused"),
    [
        ("What a model needs of memory.", True),
        ("Whether the engine moves: the age of its last step.", True),
        ("The memory that a model needs.", False),
        ("Returns what a model needs.", False),
        ("Where a store is busy, the next one is tried.", False),
    ],
)
def test_the_rule_knows_a_main_clause(docstring: str, is_refused: bool):
    assert is_relative(docstring) is is_refused
