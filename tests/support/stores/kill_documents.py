"""Puts documents until killed; `python -m tests.support.stores.kill_documents FOLDER` prints each one that is in."""

import sys
from pathlib import Path
from random import Random

from adapters.fake.environment import FakeClock
from adapters.sqlite.document_store import SqliteDocumentStore
from domain.request.document import Document, DocumentKey, Owner
from tests.support.telemetry.recording import RecordingEvents

QUOTA_BYTES = 8 << 20


def numbered(number: int) -> Document:
    random = Random(number)
    body = random.randbytes(random.choice([10, 3_000, 300_000]))
    return Document(DocumentKey(Owner("alice"), "response", str(number)), body, "demo", 1_700_000_000 * 10**9)


def open_documents(path: Path, events: RecordingEvents | None = None, **options: object) -> SqliteDocumentStore:
    """In the folder `path`."""
    quota_bytes = options.pop("quota_bytes", QUOTA_BYTES)
    clock = options.pop("clock", None) or FakeClock()
    return SqliteDocumentStore(path / "documents.sqlite", quota_bytes, events or RecordingEvents(), clock, **options)  # type: ignore[arg-type]


def main(path: Path) -> None:
    store = open_documents(path)
    for number in range(100_000):
        assert store.put([numbered(number), numbered(number + 1_000_000)])
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
