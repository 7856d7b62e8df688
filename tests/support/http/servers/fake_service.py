"""A whole server on the toy engine, listening on a real socket, with every part within reach of a test."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import httpx
from litestar import Litestar

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock, FakeIds
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizers
from adapters.huggingface.hub import HuggingFaceHub
from adapters.image_process.workers import ImageWorkers
from adapters.sqlite.document_store import SqliteDocumentStore
from adapters.system.key_file import ServerKeys
from adapters.web.image_fetcher import ImageFetcher
from adapters.web.peer_reader import read_peer
from application.live_settings import LiveSettings
from application.ports.block_store import BlockStore
from application.ports.document_store import DocumentStore
from application.ports.file_reader import FileReader
from application.ports.model_hub import ModelHub
from application.ports.model_repository import ModelCheck
from application.ports.quantiser import Quantiser
from application.ports.tokenizer import TokenizerLoader
from application.ports.tool_servers import OpenRequested, ToolServers
from application.ports.vision import FetchImage, ImageProcessorLoader
from application.services.cache_readings import CacheReadings
from application.services.documents import Documents
from application.services.event_sinks import EventFanOut
from application.services.live_figures import LiveFigures
from application.services.observed_tools import ObservedTools
from application.services.recent_log import RecentLog
from application.services.request_timelines import RequestTimelines
from application.services.text_side.answers.generated_calls import GeneratedCalls
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.answers.prompt_files import PromptFiles
from application.services.text_side.answers.prompt_images import PromptImages
from application.services.text_side.models.model_finder import accept_any_model
from application.services.text_side.models.model_pool import ROOM_WAIT_S, ModelPool
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.engine_thread import EngineThread
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.memory_guard import MemoryGuard
from application.settings import CacheSettings, ModelSettings, ModelTable, ServerSettings, Settings, StoreSettings
from application.use_cases.cached_prompts import CachedPrompts
from application.use_cases.check_health import CheckHealth
from application.use_cases.embed import Embed
from application.use_cases.generate import Generate
from application.use_cases.hub_models import HubModels
from application.use_cases.manage_keys import ManageKeys
from application.use_cases.models import Models
from application.use_cases.peers import Peers
from application.use_cases.quantise import Quantise
from application.use_cases.tokenize import Tokenize
from application.use_cases.tool_loop import ToolLoop
from domain.byte_size import ByteSize
from domain.client import Client, KeyRing, key_digest, own_clients
from domain.ids import ModelId
from domain.models.residency import LoadRoom
from domain.scheduling.queue_waits import QueueWaits
from domain.scheduling.step_values import StepLimits
from interfaces.composition.cache import CacheTiers
from interfaces.composition.engine_entry import IMAGE_CHILD
from interfaces.composition.settings import build_change_settings
from interfaces.http.answering import answering
from interfaces.http.app import create_app
from interfaces.http.front.connection_limits import ConnectionLimits
from interfaces.http.front.server import HttpServer
from interfaces.http.services import Services
from tests.support.engines.guards import UnboundedGuard
from tests.support.engines.short_memory import ShortMemory
from tests.support.http.servers.live_service import running
from tests.support.http.servers.stand_in import StandIn
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

_VERSION = "9.9"
_MAX_KINDS = 8


class _LentApp:
    """An application that serves one test after another: building one takes ten times as long as the rest of a server.

    It is built from stand-ins, each of which passes on to the part of the server that has the application now, and to
    nothing between two servers, so nothing of a test is left in it. One whose server failed is not lent again.
    """

    def __init__(self, settings: ServerSettings, default_model: str, names: frozenset[str]) -> None:
        self._parts = {name: StandIn() for name in names}
        given = {field.name: self._parts.get(field.name) for field in fields(Services)}
        self._parts["clock"].stands_for(FakeClock())  # read once for when the server began, as every such clock tells
        self.app = create_app(
            Services(**{**given, "default_model": default_model}),
            settings,
            version=_VERSION,
            keys=cast(KeyRing, self._parts["keys"]),
        )

    def serves(self, parts: Mapping[str, object]) -> None:
        for name, stand_in in self._parts.items():
            stand_in.stands_for(parts.get(name))


_idle: dict[tuple[ServerSettings, str, frozenset[str]], list[_LentApp]] = {}
"""By all that they are made of: settings, default model, and which parts there are. The last few kinds."""


@contextmanager
def lent_app(services: Services, settings: ServerSettings, keys: KeyRing) -> Iterator[Litestar]:
    """The application for a server of these parts until the block ends."""
    parts = {"keys": keys, **_parts(services)}
    kind = settings, services.default_model, frozenset(parts)
    idle = _idle.pop(kind, [])
    _idle[kind] = idle
    if len(_idle) > _MAX_KINDS:
        del _idle[next(iter(_idle))]
    lent = idle.pop() if idle else _LentApp(*kind)
    lent.serves(parts)
    yield lent.app
    lent.serves({})
    idle.append(lent)


def _parts(whole: Services) -> dict[str, object]:
    named = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return {name: part for name, part in named.items() if not isinstance(part, str | None)}


DEFAULT_MODEL = "fake-attention"

# A stream whose admission is not known by then has `pending` in its headers: a busy machine admits it when it can.
answering.HEADERS_BY_S = PATIENCE_S


@dataclass
class FakeService:
    """`base_url` and `client` reach the server; the other fields are its insides."""

    engine: FakeEngine
    loop: EngineThread
    requests: OpenRequests
    pool: ModelPool
    clock: FakeClock
    events: RecordingEvents
    server: HttpServer
    client: httpx.Client
    app: Litestar
    memory: ShortMemory
    model: str = DEFAULT_MODEL

    @property
    def base_url(self) -> str:
        return self.server.base_url

    def num_open_sequences(self) -> int:
        return sum(len(model.open_ids()) for model in tuple(self.engine.loaded))

    def is_idle(self) -> bool:
        """Nothing waits, runs, holds state or is listened to."""
        status = self.loop.status()
        return not (status.num_waiting or status.num_running or self.num_open_sequences() or self.requests.num_open)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what)

    def wait_until_idle(self) -> None:
        wait_until(self.is_idle, "the engine to be idle")


Serving = Callable[[AbstractContextManager[FakeService]], FakeService]
"""Starts a server that lasts as long as the test."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something another thread does; an AssertionError after a time no healthy machine needs."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)


@contextmanager
def fake_service(
    options: FakeOptions | None = None,
    *,
    by_model: Mapping[str, FakeOptions] | None = None,
    settings: ServerSettings | None = None,
    connections: ConnectionLimits | None = None,
    model_settings: ModelSettings | None = None,
    models: FakeModels | None = None,
    tokenizers: TokenizerLoader | None = None,
    limits: StepLimits | None = None,
    max_queue: int = 64,
    reuses: bool = False,
    read_timeout_s: float = 20.0,
    hot_bytes: int = 1 << 28,
    live_bytes: int = 0,
    store: BlockStore | None = None,
    cache_settings: CacheSettings | None = None,
    trace_context: Callable[[], Mapping[str, str]] = dict,
    documents: DocumentStore | None = None,
    keys: KeyRing | None = None,
    tables: Mapping[str, ModelTable] | None = None,
    check: ModelCheck = accept_any_model,
    room: Callable[[], LoadRoom] = LoadRoom,
    room_bytes: int | None = None,
    guard: MemoryGuard | None = None,
    waits: QueueWaits | None = None,
    max_loaded: int | None = None,
    room_wait_s: float = ROOM_WAIT_S,
    images: ImageProcessorLoader | None = None,
    fetch: FetchImage | None = None,
    hub: ModelHub | None = None,
    quantises: tuple[Quantiser | None, str] = (None, ""),
    files: FileReader | None = None,
    tool_servers: ToolServers | None = None,
    approvals: Mapping[str, bool] | None = None,
    max_steps: int = 10,
    open_requested: OpenRequested | None = None,
    asks_requested: bool = True,
    peers: Sequence[str] = (),
) -> Iterator[FakeService]:
    """Start everything, and at the end stop it and check that nothing was left behind.

    `reuses`: with a prefix cache of `hot_bytes` over `store`, and of `live_bytes` beside it: most tests are about
    records, which taking states over would leave unused. `store` and `documents` are closed at the end.
    `quantises`: with which folder. `room_bytes`: what the engine says one request may take of memory; None: nothing.
    """
    settings = settings or ServerSettings(port=0)
    clock, ids, events = FakeClock(), FakeIds(), RecordingEvents()
    model_settings = model_settings or ModelSettings(default=DEFAULT_MODEL)
    whole = Settings(
        server=settings, model=model_settings, cache=cache_settings or CacheSettings(), models=tables or {}
    )
    live = LiveSettings(whole)
    timelines = RequestTimelines(keeps_tokens=whole.shows_text)
    figures = LiveFigures(clock, timelines)
    sinks = EventFanOut(timelines, events, figures)
    engine_events = EventBatcher(clock)
    engine = FakeEngine({ModelId(id): value for id, value in (by_model or {}).items()}, options)
    limits = limits or StepLimits(max_batch=8, prefill_budget=256, grid=256)
    tiers = CacheTiers(
        Settings(
            store=StoreSettings(hot_tier=ByteSize(num_bytes=hot_bytes if reuses else 0)),
            cache=replace(cache_settings or CacheSettings(), live_states=ByteSize(num_bytes=live_bytes)),
        ),
        limits,
        store if reuses else None,
        engine_events,
        clock,
        read_timeout_s=read_timeout_s,
    )
    loop = EngineThread(
        EngineLoop(
            batcher=engine_events,
            prefix_cache=tiers.prefix_cache,
            guard=guard or UnboundedGuard(),
            limits=limits,
            waits=waits,
        ),
        make_backend=lambda: engine,
        close_cache=lambda: tiers.close(PATIENCE_S),
    )
    memory = ShortMemory(loop, room_bytes)
    requests = OpenRequests(memory, sinks, clock, max_queue, timelines)
    repository = models or FakeModels()
    pool = ModelPool(
        repository=repository,
        tokenizers=tokenizers or FakeTokenizers(),
        engine=loop,
        live=live,
        clock=clock,
        check=check,
        room=room,
        max_loaded=max_loaded,
        room_wait_s=room_wait_s,
        images=images,
    )
    document_store = documents or SqliteDocumentStore(None, 0, events, clock)
    kept = Documents(lambda: document_store, events, clock, salt=whole.cache.salt, timeout_s=read_timeout_s)
    calls = GeneratedCalls(kept)
    prompt_files = PromptFiles(files or ImageWorkers(IMAGE_CHILD))
    encoder = PromptEncoder(PromptImages(fetch or ImageFetcher(lambda: ())), prompt_files, calls)
    generate = Generate(pool=pool, engine=memory, requests=requests, ids=ids, encoder=encoder, calls=calls)
    served = Models(pool, repository, live)
    hub_models = HubModels(hub or HuggingFaceHub(), served, lambda _id, _type: "")
    quantise = Quantise(*quantises, served, sinks, clock)
    log = RecentLog(clock)
    observed = ObservedTools(tool_servers, sinks, clock) if tool_servers is not None else None
    services = Services(
        DEFAULT_MODEL,
        generate,
        Embed(pool=pool, engine=memory, requests=requests, encoder=encoder, clock=clock),
        served,
        hub_models,
        quantise,
        CheckHealth(engine=loop, requests=requests, pool=pool, clock=clock, stuck_after_s=60),
        CachedPrompts(
            pool=pool,
            engine=loop,
            encoder=encoder,
            requests=requests,
            generate=generate,
            clock=clock,
            shows_text=whole.shows_text,
        ),
        Tokenize(pool, encoder),
        loop,
        kept,
        ids,
        clock,
        sinks,
        figures,
        timelines,
        requests,
        CacheReadings(loop, kept.usage, clock),
        log,
        build_change_settings(live, None, served),
        ManageKeys(ServerKeys(ServerSettings(), sinks, clock)),
        Peers(peers, read_peer, clock),
        trace_context,
        ToolLoop(
            generate,
            observed,
            approvals or {},
            max_steps,
            open_requested=open_requested,
            asks_requested=asks_requested,
        )
        if observed is not None
        else None,
        tool_servers=observed,
    )
    if keys is None:
        keys = KeyRing(own_clients(settings.api_key), is_open=not settings.needs_key)
    server = HttpServer(settings, connections)
    with lent_app(services, settings, keys) as app:

        async def serve(started: Callable[[str], None]) -> None:
            logging.getLogger().addHandler(log)
            loop.start(requests.receive)
            try:
                await server.serve(app, started, requests.cut_off)
            finally:
                logging.getLogger().removeHandler(log)
                assert await loop.stop(PATIENCE_S), "the compute thread did not end"

        try:
            # No https, so no certificates are read: that takes as long as many a test.
            with (
                running(server, serve),
                httpx.Client(base_url=server.base_url, timeout=PATIENCE_S, verify=False) as client,
            ):
                service = FakeService(engine, loop, requests, pool, clock, events, server, client, app, memory)
                yield service
                service.wait_until_idle()
        finally:
            hub_models.close()
            quantise.close()
            encoder.close()
            kept.close(PATIENCE_S)
            pool.close()
        assert not loop.status().is_alive, "the compute thread did not end"


KEY = "-s3cret-key"
SETTINGS = ServerSettings(port=0, api_key="default" + KEY, key_file="never read here")


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}{KEY}"}


def ring(*clients: Client) -> KeyRing:
    keyed = [replace(client, sha256=key_digest(f"{client.name}{KEY}".encode())) for client in clients]
    return KeyRing([*own_clients(SETTINGS.api_key), *keyed])


@contextmanager
def keyed_service(*clients: Client, settings: ServerSettings = SETTINGS, **options: Any) -> Iterator[FakeService]:
    with fake_service(options.pop("options", None), settings=settings, keys=ring(*clients), **options) as service:
        yield service
