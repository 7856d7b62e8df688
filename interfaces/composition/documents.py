"""The store of documents that the settings ask for: a folder of its own in the block store's, or memory."""

from functools import partial
from pathlib import Path

from adapters.decorators.fleeting_documents import FleetingDocuments
from adapters.lmdb.directory import DOCUMENTS_FOLDER, StoreDirectory
from adapters.lmdb.documents import LmdbDocumentStore
from adapters.memory.document_store import MemoryDocumentStore
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from application.ports.block_store import OpenFailure, StoreOpenError
from application.ports.clock import Clock
from application.ports.document_store import DocumentStore
from application.ports.event_sink import EventSink
from application.services.documents import Documents
from application.services.text_side.generated_calls import GeneratedCalls
from application.settings import CacheSettings, Settings, StoreSettings
from interfaces.composition.store import READ_TIMEOUT_S, free_reserve_bytes, store_dir

FLEETING_BYTES = 32 << 20
"""Of documents that may not be written to disk, in memory."""


def build_documents(settings: Settings, events: EventSink, clock: Clock) -> Documents:
    """Nothing is opened yet."""
    opens = partial(open_documents, settings.store, events, clock)
    return Documents(opens, events, clock, salt=settings.cache.salt, timeout_s=READ_TIMEOUT_S)


def generated_calls(settings: CacheSettings, documents: Documents) -> GeneratedCalls:
    return GeneratedCalls(documents if settings.remember_calls else None)


def open_documents(settings: StoreSettings, events: EventSink, clock: Clock) -> DocumentStore:
    """On disk if that is where the store is, but what is fleeting; in memory otherwise, and when it cannot be opened,
    which is told."""
    num_bytes, max_age_s = settings.documents.num_bytes or 0, settings.documents_age.num_seconds
    try:
        if settings.kind == "lmdb" and num_bytes:
            memory = MemoryDocumentStore(min(num_bytes, FLEETING_BYTES), clock, max_age_s=max_age_s)
            return FleetingDocuments(memory, open_lmdb_documents(settings, events, clock))
    except StoreOpenError as failure:
        events.emit(StoreFault(f"open_{failure.failure.value}", str(failure), clock.now_ns()))
    return MemoryDocumentStore(num_bytes, clock, max_age_s=max_age_s)


def open_lmdb_documents(settings: StoreSettings, events: EventSink, clock: Clock) -> LmdbDocumentStore:
    """Raises StoreOpenError."""
    path = store_dir(settings)
    StoreDirectory(path).prepare()  # before anything is written into it: the folder may be somebody else's
    try:
        reserve_bytes = free_reserve_bytes(path)
    except OSError as failure:
        raise StoreOpenError(OpenFailure.VOLUME, f"{path} cannot be read: {failure.strerror}") from None
    return LmdbDocumentStore(
        documents_dir(settings),
        settings.documents.num_bytes or 0,
        ZstdStateCodec(),
        events,
        clock,
        max_age_s=settings.documents_age.num_seconds,
        free_reserve_bytes=reserve_bytes,
    )


def documents_dir(settings: StoreSettings) -> Path:
    return store_dir(settings) / DOCUMENTS_FOLDER


__all__ = ("build_documents", "documents_dir", "generated_calls", "open_documents", "open_lmdb_documents")
