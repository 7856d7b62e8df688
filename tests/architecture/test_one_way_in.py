"""Everything that is computed for a request was weighed first: one place makes submissions, and it asks."""

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
    assert makers == ["application/use_cases/generate.py"]
    text = (ROOT / makers[0]).read_text()
    assert text.index("self._memory.answer_length(") < text.index("Submission(\n") < text.index(".submit(")
