"""Libraries imported by name at run time, which import-linter does not see, have one home as well."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("domain", "application", "adapters", "interfaces")

HOMES = {
    "mlx_lm": ("adapters/mlx", "adapters/tokenizers"),
    "mlx": ("adapters/mlx",),
    "mlx_vlm": ("adapters/mlx",),
    "transformers": ("adapters/tokenizers", "adapters/image_processors", "adapters/mlx"),
    "tokenizers": ("adapters/tokenizers", "adapters/image_processors"),
    "huggingface_hub": ("adapters/huggingface",),
    "tqdm": ("adapters/huggingface",),
    "lmdb": ("adapters/lmdb",),
    "zstandard": ("adapters/zstd",),
    "opentelemetry": ("adapters/otel",),
    "litestar": ("interfaces/http",),
    "readline": ("interfaces/cli",),
}


def dynamic_imports(source: str) -> Iterator[str]:
    """First names of modules given as text to `import_module` or `__import__`; `?` where the text is not to be seen."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and _called(node.func) in {"import_module", "__import__"} and node.args:
            yield _start_of(node.args[0]).split(".")[0]


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _start_of(name: ast.expr) -> str:
    first = name.values[0] if isinstance(name, ast.JoinedStr) and name.values else name
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else "?"


def test_every_dynamic_import_is_at_home():
    astray = [
        f"{source.relative_to(ROOT)} imports {module}"
        for layer in LAYERS
        for source in (ROOT / layer).rglob("*.py")
        for module in dynamic_imports(source.read_text())
        if "/".join(source.relative_to(ROOT).parts[:2]) not in HOMES.get(module, ())
    ]
    assert astray == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('import importlib\nimportlib.import_module("mlx_lm.utils")', "mlx_lm"),
        ('from importlib import import_module\nimport_module(f"mlx_lm.{name}")', "mlx_lm"),
        ('__import__("lmdb")', "lmdb"),
        ("import_module(name)", "?"),
    ],
)
def test_a_dynamic_import_would_be_found(source: str, found: str):
    assert list(dynamic_imports(source)) == [found]
