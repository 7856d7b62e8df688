"""No source file grows into a dumping ground."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("domain", "application", "adapters", "interfaces", "tests", "bench", "training")
MAX_LINES = 400


def test_no_file_is_too_long():
    sources = [source for folder in FOLDERS for source in (ROOT / folder).rglob("*.py")]
    assert sources
    lengths = {str(source.relative_to(ROOT)): len(source.read_text().splitlines()) for source in sources}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}
