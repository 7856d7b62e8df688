"""Everything that is computed for a request was weighed first, and decoded on one path: no guard can be gone around."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("application", "adapters", "interfaces")


def test_only_the_use_case_that_checks_memory_submits() -> None:
    makers = [
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if " = Submission(" in (text := path.read_text()) or "(Submission(" in text
    ]
    assert sorted(makers) == ["application/use_cases/embed.py", "application/use_cases/generate.py"]
    for maker in makers:
        text = (ROOT / maker).read_text()
        assert text.index("memory.answer_length(") < text.index("Submission(\n") < text.index(".submit(")


def callers(name: str, *folders: str) -> Iterator[str]:
    """Every function that calls something of this name, in order."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                for method in node.body if isinstance(node, ast.ClassDef) else [node]:
                    found = (call.func for call in ast.walk(method) if isinstance(call, ast.Call))
                    if any(isinstance(func, ast.Attribute) and func.attr == name for func in found):
                        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                        yield owner + getattr(method, "name", path.stem)


def test_decoding_has_one_path() -> None:
    """With drafts or without: one caller of a model's decode steps, and one forward pass, which is that of every token
    of a decode group; `try_width` measures it."""
    assert list(callers("decode", "application/services/token_side")) == [
        "EngineLoop._decode",
        "Speculation.decode_model",
    ]
    assert list(callers("decode_model", "application/services/token_side")) == ["Speculation.decode"]
    assert list(callers("module", "adapters/mlx")) == ["LoadedNetwork.forward"]
    assert list(callers("forward", "adapters/mlx")) == ["DecodeGroup._pass", "MlxModel._feed"]
    passes = {f"DecodeGroup.{name}" for name in ("verify", "_feed", "_undo")}
    assert set(callers("_pass", "adapters/mlx")) == passes
    for step in ("verify", "advance", "finish_step"):
        assert set(callers(step, "adapters/mlx")) <= {"Decoder.step", "DecodeGroup.start"}


def test_mlx_waits_for_the_device_in_one_place() -> None:
    """What a wait raises elsewhere would be taken for the failure of one request."""
    waits = ("eval", "async_eval", "synchronize", "clear_cache")
    text = {path: path.read_text() for path in (ROOT / "adapters/mlx").rglob("*.py")}
    found = {path.name for path, code in text.items() if any(f"mx.{name}" in code for name in waits)}
    assert found == {"arrays.py"}
