"""The store of documents: a folder of its own in the block store's, or memory."""

from functools import partial
from pathlib import Path

from adapters.lmdb.directory import DOCUMENTS_FOLDER, StoreDirectory
from adapters.sqlite.document_store import SqliteDocumentStore
from application.events import StoreFault
from application.ports.block_store import StoreOpenError
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.documents import Documents
from application.settings import Settings, StoreSettings
from interfaces.composition.store import READ_TIMEOUT_S, free_reserve_bytes, store_dir

QUOTA_BYTES = 256 << 20
"""Of documents on disk."""

MAX_AGE_S = 30 * 86_400
"""How long documents are kept where `store.max_age` says nothing."""


def build_documents(settings: Settings, events: EventSink, clock: Clock) -> Documents:
    """Nothing is opened yet."""
    opens = partial(open_documents, settings.store, events, clock)
    return Documents(opens, events, clock, salt=settings.cache.salt, timeout_s=READ_TIMEOUT_S)


def open_documents(settings: StoreSettings, events: EventSink, clock: Clock) -> SqliteDocumentStore:
    """On disk where the store is, else in memory. A folder that cannot be the store's is reported, and means memory."""
    path, reserve_bytes = None, 0
    if settings.kind == "lmdb":
        folder = store_dir(settings)
        try:
            StoreDirectory(folder).prepare()  # before anything is written into it: the folder may be somebody else's
            path, reserve_bytes = documents_file(settings), free_reserve_bytes(folder)
        except (StoreOpenError, OSError) as failure:
            kind = failure.failure.value if isinstance(failure, StoreOpenError) else "volume"
            events.emit(StoreFault(f"open_{kind}", f"stored responses are kept in memory: {failure}", clock.now_ns()))
    max_age_s = MAX_AGE_S if settings.max_age is None else settings.max_age.num_seconds
    return SqliteDocumentStore(path, QUOTA_BYTES, events, clock, max_age_s=max_age_s, free_reserve_bytes=reserve_bytes)


def documents_file(settings: StoreSettings) -> Path:
    return store_dir(settings) / DOCUMENTS_FOLDER / "documents.sqlite"
