"""The server of `cairn serve` in this process: start, banner, stop, and its outcome."""

import asyncio
import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import typer

from adapters.config.loader import LoadedSettings, config_file
from adapters.engine_process.child import ChildProcess
from adapters.system.systemd import systemd_notifier
from application.ports.supervision import NoServiceManager, ServiceManager
from application.ports.tokenizer import TemplateFeatures, Tokenizer
from application.settings import Settings
from domain.byte_size import format_bytes
from domain.duration import Duration
from domain.errors import DomainError
from domain.models.capability import GENERATES, Capability
from domain.models.model_card import DecodeMode, ModelDescription
from domain.setup.suggestions import SUGGESTIONS
from interfaces.cli.server.loading import wait_for_model
from interfaces.composition.memory import describe_limits
from interfaces.composition.near_models import near_models
from interfaces.composition.service import Service, build_service
from interfaces.composition.store import quota_bytes, store_dir
from interfaces.http.front.server import HttpServer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """The first SIGINT or SIGTERM asks the server to drain and to stop, the second ends the process at once. Between
    drain and stop lies `grace` after SIGTERM, and no time after SIGINT, which people send. Installed on the running
    event loop, for good. `is_stopping` is True from the first signal on."""

    def __init__(self, drain: Callable[[], None], stop: Callable[[], None], grace: Duration | None) -> None:
        self._drain, self._stop, self._grace = drain, stop, grace
        self.is_stopping = False
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self.is_stopping:
            # Not sys.exit, which a hanging thread would block. Stored data is safe against kill -9.
            os._exit(128 + number)
        self.is_stopping = True
        self._drain()
        if self._grace is None or number == signal.SIGINT:
            typer.echo("stopping after the running requests; send the signal again to stop at once", err=True)
            self._stop()
        else:
            typer.echo(f"draining for {self._grace}, then stopping; send the signal again to stop at once", err=True)
            self._loop.call_later(self._grace.num_seconds, self._stop)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a server. `problem`: empty if it was asked to stop. `is_clean`: every thread has ended."""

    problem: str
    is_clean: bool


async def serve_until_stopped(loaded: LoadedSettings, first_child: ChildProcess) -> Outcome:
    """Serves until a signal arrives or the default model fails to load. `first_child`: as in Container. Raises
    AddressUnavailable and InvalidKeys."""
    settings = loaded.settings
    server, supervisor = HttpServer(settings.server), systemd_notifier() or NoServiceManager()

    def stop() -> None:
        supervisor.stopping()
        server.stop()

    problem = ""

    def outdated(why: str) -> None:
        nonlocal problem
        problem = why
        stop()

    def drain() -> None:
        supervisor.stopping()
        service.container.check_health().draining.begin(is_final=True)

    signals = StopSignals(drain, stop, settings.server.drain_grace)
    typer.echo(f"loading {settings.model.default}; listening on {server.base_url}")
    service = build_service(
        settings,
        loaded=loaded,
        place="process",
        first_child=first_child,
        supervisor=supervisor,
        give_up=os._exit,  # any other exit would wait for a hanging thread
        outdated=outdated,
    )
    announcing: asyncio.Task[str] | None = None

    def started(base_url: str) -> None:
        nonlocal announcing
        if signals.is_stopping or problem:
            server.stop()
        announcing = asyncio.create_task(_announce(service, server, base_url, supervisor))

    try:
        await service.start()  # the child's imports take long too: both run at once
        app = service.app
        if settings.server.key_file is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.container.keys().look_now)
        if signals.is_stopping or problem:
            server.close()
        else:
            await server.serve(app, started, service.container.requests().cut_off)
    finally:
        if announcing is not None:
            announcing.cancel()
            await asyncio.wait([announcing])
        is_clean = await service.stop()
    if not problem and announcing is not None and not announcing.cancelled():
        problem = announcing.result()
    return Outcome(problem, is_clean)


async def _announce(service: Service, server: HttpServer, base_url: str, supervisor: ServiceManager) -> str:
    """Waits for the model, then prints the banner and reports to the supervisor. Returns why the model cannot be
    served, after stopping the server, or an empty string."""
    try:
        served = await wait_for_model(service)
    except DomainError as error:
        server.stop()
        return error.message + near_models(service.settings, service.settings.model.default)
    notes = [("note", served.source.note), ("next", REAL)] if served.source.note else []
    facts, can = [*notes, *await _facts(service, served.description)], served.source.use.capabilities
    typer.echo(banner(service.settings, base_url, served.description, served.tokenizer, facts, can))
    supervisor.ready()
    return ""


async def _facts(service: Service, model: ModelDescription) -> list[tuple[str, str]]:
    status = service.engine.status()
    return [
        ("device", status.computing),
        ("memory", describe_limits(status.limits)),
        ("data", await _data_fact(service)),
        ("config", _config_fact()),
    ]


async def _data_fact(service: Service) -> str:
    store = service.settings.store
    if store.kind != "lmdb":
        return "in memory only, until the process ends" if store.kind == "memory" else "none: the store is off"
    folder = store_dir(store)
    stats = await service.engine.cache.stats()
    if stats.store is None and not stats.problem:
        return f"none: the store in {folder} could not be opened"
    if stats.store is not None and not stats.store.quota_bytes:
        return f"none yet: the log says why the store in {folder} cannot be opened now"
    return f"{folder}, at most {format_bytes(quota_bytes(store, folder))}"


def _config_fact() -> str:
    file = config_file(os.environ)
    return str(file) if file.exists() else f"{file} (none yet)"


REAL = f"cairn plan --suggest names real models that fit, to be served as cairn serve {SUGGESTIONS[0].name}"

WIDTH = 80
"""The columns of the terminal that the banner is made for."""

_BETWEEN_VALUES = re.compile(r'(?<=[,:]) (?=["\[{])')

QUESTION = "My cat is called Miso. What is my cat called?"
"""A question that the embedded model can answer from its prompt."""

PICTURE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAADAAAAAwAgMAAAAqbBEUAAAADFBMVEX////cHh4ePNwAAABl4ESnAAAAWElEQVR42s2OwQ2AMAwD"
    "z1EGyEh9MC0DMQ+PKtCi9AnCr1jnOIFXFTkYsI2GwUgr4rQFiavboOF1TKCaOGS3Eferj1iD7J6IC0DswDHv9HjvzuNF7F/mK52r"
    "+gUwVWnqlwAAAABJRU5ErkJggg=="
)
"""A red triangle and a blue square."""

SHOWN = [
    {"type": "image_url", "image_url": {"url": PICTURE}},
    {"type": "text", "text": "What color is the square?"},
]

EXAMPLES: Mapping[Capability, tuple[str, Mapping[str, object]]] = {
    Capability.GENERATE: ("chat/completions", {"messages": [{"role": "user", "content": QUESTION}]}),
    Capability.EMBED: ("embeddings", {"input": QUESTION}),
    Capability.SCORE: ("rerank", {"query": QUESTION, "documents": ["Miso is a cat.", "Miso is a soup."]}),
    Capability.SEE: ("chat/completions", {"messages": [{"role": "user", "content": SHOWN}]}),
}
"""A request for each capability: its route and its body."""


def banner(
    settings: Settings,
    base_url: str,
    model: ModelDescription,
    tokenizer: Tokenizer,
    facts: Sequence[tuple[str, str]],
    can: frozenset[Capability] = GENERATES,
) -> str:
    """The text that is printed when the server is ready. `base_url`: without a path. `facts`: further lines, as (name,
    text). `can`: what the model can do."""
    rows = [("model", describe_model(model))]
    if Capability.GENERATE in can:
        template = describe_template(tokenizer.template_features)
        rows += [("template", template), ("answers", tokenizer.output_format)]
    rows += [("pages", f"{base_url}/chat to talk to it, {base_url}/admin to watch it"), *facts]
    first = next(one for one in (Capability.SEE, *Capability) if one in can)
    lines = [f"Cairn serves {model.id} at {base_url}/v1", "", *curl_lines(settings, base_url, model.id, first), ""]
    for name, text in rows:
        first, *rest = wrap(text, WIDTH - 11, break_long_words=False, break_on_hyphens=False)
        lines += [f"  {name:<8} {first}", *(f"{'':<11}{line}" for line in rest)]
    return "\n".join(lines)


def curl_lines(settings: Settings, base_url: str, model: str, can: Capability) -> list[str]:
    path, fields = EXAMPLES[can]
    body = json.dumps({"model": model, **fields})
    key = " -H 'authorization: Bearer YOUR-KEY'" if settings.server.needs_key else ""
    data = "\n".join(_json_lines(body))
    return [
        f"  curl {base_url}/v1/{path} \\",
        f"    -H 'content-type: application/json'{key} \\",
        f"    -d {shlex.quote(data)}",
    ]


def _json_lines(text: str) -> Iterator[str]:
    """JSON in lines that fit the terminal, broken between its values only."""
    line = ""
    for part in _BETWEEN_VALUES.split(text):
        if line and len(line) + 1 + len(part) > WIDTH - 8:
            yield line
            line = f"      {part}"
        else:
            line = f"{line} {part}" if line else part
    yield line


def describe_template(features: TemplateFeatures | None) -> str:
    """The abilities of the chat template: `tools, reasoning, no late system messages (sent as user messages)`."""
    if features is None:
        return "none: completions only"
    tools = "tools" if features.tools else "no tools"
    reasoning = "reasoning" if features.reasoning else "no reasoning"
    late = "late system messages" if features.late_system else "no late system messages (sent as user messages)"
    return f"{tools}, {reasoning}, {late}"


def describe_model(model: ModelDescription) -> str:
    """A model in a line: `cairn-demo: float32, 43.1 MiB of weights, context of 2048 tokens`."""
    text = f"{model.id}: {model.dtype}, {format_bytes(model.weight_bytes)}, context of {model.context_length} tokens"
    if model.kv_bits is not None:
        text += f", keys and values in {model.kv_bits.setting} bits"
    if model.decode_mode is DecodeMode.SINGLE:
        text += f", one sequence at a time ({model.decode_note or 'batching unsupported'})"
    return text
