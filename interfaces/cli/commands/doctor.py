"""`cairn doctor`: checks of this machine and of the settings.

Each check is a name, a finding, and what to do about it if something is wrong. A check never raises: a failed check is
itself a finding.
"""

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import typer

from application.installation import DISTRIBUTION
from application.settings import ANY, OFF, CacheSettings, Settings
from domain.byte_size import format_bytes
from domain.errors import InvalidKeys
from interfaces.cli.terminal.ending import FAILED
from interfaces.cli.terminal.options import AsJson, Backend, Dtype, Model, ModelDirs, model_flags, settings_with

LIBRARIES = (DISTRIBUTION, "mlx", "mlx-lm", "transformers", "litestar", "lmdb", "zstandard")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}").findall
MIN_OPEN_FILES = 4096
MIN_MEMORY_BYTES = 2 * 2**30
MIN_DISK_BYTES = 2 * 2**30


def doctor(
    model: Model = None,
    dtype: Dtype = None,
    model_dir: ModelDirs = None,
    backend: Backend = None,
    as_json: AsJson = False,
) -> None:
    """Check device, BLAS, model, limits, data folder and settings; exit status 1 if something is wrong."""
    settings = settings_with(model_flags(model, dtype, model_dir, backend)).settings
    checks = list(run_checks(settings))
    is_ok = not any(check.problem for check in checks)
    if as_json:
        found = [{"name": check.name, "found": check.found, "problem": check.problem or None} for check in checks]
        typer.echo(json.dumps({"ok": is_ok, "checks": found}, indent=2))
    else:
        for check in checks:
            typer.echo(f"{'!' if check.problem else ' '} {check.name:<11} {check.found}")
            if check.problem:
                typer.echo(f"{'':14}{check.problem}")
        typer.echo("nothing is wrong" if is_ok else "lines with ! want attention")
    if not is_ok:
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class Check:
    """A finding. `problem`: what to do about the finding; empty if nothing is wrong."""

    name: str
    found: str
    problem: str = ""


def run_checks(settings: Settings) -> Iterator[Check]:
    """Runs every check, in the order shown. Takes a few seconds: MLX is imported."""
    parts: tuple[Callable[[], Iterator[Check]], ...] = (
        _versions,
        lambda: _computing(settings),
        lambda: _model(settings),
        _images,
        _limits,
        lambda: _memory_limit(settings),
        lambda: _data(settings),
        lambda: _guard(settings),
        lambda: _tool_servers(settings),
        _configuration,
    )
    for part in parts:
        try:
            yield from part()
        except Exception as error:
            yield Check("doctor", f"{type(error).__name__}: {error}", "a check failed; please report it")


def _versions() -> Iterator[Check]:
    yield Check("system", f"{platform.platform()}, Python {platform.python_version()}")
    found: list[str] = []
    missing: list[str] = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    yield Check("versions", ", ".join(found), f"not installed: {', '.join(missing)}" if missing else "")


def _computing(settings: Settings) -> Iterator[Check]:
    from adapters.system.machine import usable_cpus
    from interfaces.composition.backends import device_and_blas

    try:
        device, blas = device_and_blas(settings)
    except ImportError as error:
        yield Check("device", f"MLX cannot be imported: {error}", "on Linux install the extra cpu, cuda12 or cuda13")
        return
    yield Check("device", f"{device}, {usable_cpus()} CPUs")
    yield from _wired(settings)
    if blas is not None:
        slow = blas.is_needed and not blas.is_active
        yield Check("BLAS", blas.describe(), blas.remedy if slow else "")
    if sys.platform == "linux" and device == "cpu" and os.environ.get("MLX_DISABLE_COMPILE") is None:
        compiler = shutil.which("g++")
        yield Check("compiler", compiler or "no g++: MLX runs some operations unfused, a little slower")


def _wired(settings: Settings) -> Iterator[Check]:
    """Reports what is kept from being paged out, on Metal."""
    if settings.engine.backend != "mlx":
        return
    from adapters.mlx.runtime.device import spare_bytes, working_set_bytes

    if (most := working_set_bytes()) is None:
        return
    found, spare = settings.engine.wired, f"{format_bytes(spare_bytes())} of freed buffers are kept"
    if found == OFF:
        yield Check("wired", f"off: wired buffers that come and go have ended macOS in panics; {spare}")
        return
    size = format_bytes(min(settings.engine.wired_bytes, most))
    yield Check("wired", f"up to {size}; {spare}", "macOS may panic: set engine.wired = off if it does")


def _model(settings: Settings) -> Iterator[Check]:
    from domain.ids import ModelId
    from interfaces.composition.backends import model_repository

    id = ModelId(settings.model.default)
    source = model_repository(settings).find(id)
    if source is not None:
        yield Check("model", f"{id} in {source.path}")
    elif settings.model.download and id.count("/") == 1:
        yield Check("model", f"{id}, to be downloaded on first use")
    else:
        yield Check("model", f"{id} is not on this machine", "see `cairn models`, or name a hub model as ORG/NAME")


def _images() -> Iterator[Check]:
    from adapters.mlx.vlm.library import missing

    yield Check("images", f"not seen: {reason}" if (reason := missing()) else "seen by models that have a tower")


def _limits() -> Iterator[Check]:
    from adapters.system.machine import SystemMemory, open_file_limits

    memory = SystemMemory().read()
    available = f", {format_bytes(memory.available_bytes)} available" if memory.available_bytes else ""
    held = f", {format_bytes(memory.held_bytes)} held by this process" if memory.held_bytes else ""
    short = memory.available_bytes is not None and memory.available_bytes < MIN_MEMORY_BYTES
    yield Check(
        "memory",
        ("unknown" if memory.total_bytes is None else format_bytes(memory.total_bytes)) + available + held,
        "less than 2 GiB are available: only small models will fit" if short else "",
    )
    soft, hard = open_file_limits()
    few = 0 <= hard < MIN_OPEN_FILES
    yield Check(
        "open files",
        f"{_limit(soft)} (may be raised to {_limit(hard)})",
        f"raise the hard limit to {MIN_OPEN_FILES} or more: every connection takes one" if few else "",
    )


def _memory_limit(settings: Settings) -> Iterator[Check]:
    from interfaces.composition.memory import describe_limits, limits_here

    limits = limits_here(settings)
    unknown = "" if limits is not None else "how much memory there is cannot be read: set --memory SIZE"
    yield Check("may hold", describe_limits(limits), unknown)


def _data(settings: Settings) -> Iterator[Check]:
    from interfaces.composition.store import store_dir

    if settings.store.kind != "lmdb":
        yield Check("data", f"nothing is kept on disk: the store is {settings.store.kind}")
        return
    folder = store_dir(settings.store)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield Check("data", f"{folder}: {error.strerror or error}", "name a folder that can be written: --store DIR")
        return
    full = free < MIN_DISK_BYTES
    yield Check("data", f"{folder}, {format_bytes(free)} free", "less than 2 GiB are free" if full else "")


def _guard(settings: Settings) -> Iterator[Check]:
    """Checks for settings that weaken the guarantees of SECURITY.md."""
    server = settings.server
    key = "with a key" if server.needs_key else "without a key"
    problems = [
        problem
        for applies, problem in (
            (
                ANY in server.allowed_hosts,
                'server.allowed_hosts = ["*"] lets web pages in by DNS rebinding',
            ),
            (ANY in server.cors_origins, 'server.cors_origins = ["*"] lets every web page ask this server'),
            (
                settings.cache.show_text == "on" and not replace(settings, cache=CacheSettings()).shows_text,
                'cache.show_text = "on" shows every client what others with the same cache_salt have sent',
            ),
        )
        if applies
    ]
    if server.key_file is not None:
        from adapters.system.key_file import KeyFile

        file = KeyFile(server.key_file)
        try:
            key = f"{len(file.read())} keys in {file.path}"
        except InvalidKeys as error:
            problems.append(error.message)
    yield Check("access", f"{server.host}, {key}", "; ".join(problems))


def _tool_servers(settings: Settings) -> Iterator[Check]:
    """Names the tool servers, and checks for what they need; starts none."""
    for name, server in settings.mcp.servers.items():
        named = {found for value in (*server.env.values(), *server.headers.values()) for found in _REFERENCE(value)}
        secrets = [f"{one} {'set' if os.environ.get(one) else 'unset'}" for one in sorted(named)]
        found = ", ".join([server.command or server.url, f"approval {server.approval}", *secrets])
        problem = ""
        if unset := [one for one in sorted(named) if not os.environ.get(one)]:
            problem = f"set {', '.join(unset)} in the environment"
        if server.command and shutil.which(server.command) is None:
            problem = f"install {server.command}, or name it by an absolute path"
        if not server.enabled:
            found, problem = f"{found}, not enabled", ""
        yield Check("tools", f"{name}: {found}", problem)


def _configuration() -> Iterator[Check]:
    from adapters.config.loader import config_file

    file = config_file(os.environ)
    yield Check("settings", f"{file}{'' if file.exists() else ' (none yet)'}")


def _limit(value: int) -> str:
    return "no limit" if value < 0 else str(value)
