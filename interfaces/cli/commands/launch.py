"""`cairn launch`: a coding agent started against a server, which is started as well if none answers."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from domain.errors import DomainError
from domain.models.near_names import near_names
from domain.printable import printable
from domain.setup.agents import AGENTS, Agent, Setup, Target
from domain.setup.programs import PROGRAMS
from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import ApiKey, Url, settings_with

if TYPE_CHECKING:
    from application.settings import Settings
    from interfaces.cli.client.running_server import RunningServer

SMALL_CONTEXT = 32_768
"""Agents send 10,000 to 30,000 tokens before the first question."""

MAX_NAMED = 10
PLACEHOLDER = "YOUR-KEY"

Name = Annotated[str, typer.Argument(metavar="AGENT", help=f"{', '.join((*AGENTS, *PROGRAMS))}.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the agent, after --.")
]
ModelName = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Default: the server's default model.")]
Print = Annotated[bool, typer.Option("--print", help="Print what would be set and run, and run nothing.")]


def launch(
    name: Name,
    arguments: Arguments = None,
    model: ModelName = None,
    url: Url = None,
    api_key: ApiKey = None,
    show: Print = False,
) -> None:
    """Start a coding agent on a server, which is started too.

    claude, codex and opencode are started, and no file of yours is changed. For other programs their settings are
    printed.
    """
    import asyncio

    from interfaces.cli.client.running_server import NotRunning, needed, running_server

    agent = AGENTS.get(name)
    if agent is None and name not in PROGRAMS:
        near = ", ".join(near_names(name, [*AGENTS, *PROGRAMS]) or [*AGENTS, *PROGRAMS])
        fail(f"AGENT must be one that is known, not {printable(name)!r}; there are: {near}", USAGE)
    command = shutil.which(name)
    if agent is not None and command is None and not show:
        fail(f"{agent.title} is not installed: no {name} on the PATH. To install it: {agent.install}")
    settings = settings_with({}).settings
    server = running_server(url, api_key, settings.server)
    with needed():
        try:
            may_start = agent is not None and not show and url is None
            server = _ready(server, settings, model, may_start=may_start)
            target = asyncio.run(_target(server, model))
        except NotRunning:
            if not show and agent is not None:
                raise
            target = _planned_target(server, settings, model)
    if target.context < SMALL_CONTEXT:
        _warn(target, must_ask=agent is not None and not show)
    if agent is None:
        typer.echo(PROGRAMS[name](_shown(target)))
    elif show:
        typer.echo(as_shell(name, agent.setup(_shown(target)), arguments or ()))
    else:
        _become(command or name, agent, target, arguments or [])


def _warn(target: Target, *, must_ask: bool) -> None:
    """Says that the context is too small. `must_ask`: the agent's screen would hide it, so the user decides; without a
    terminal the command ends."""
    small = f"{target.model} has a context of {target.context} tokens, and agents need {SMALL_CONTEXT} or more"
    advice = "choose a model with --model; cairn plan --suggest lists some"
    if must_ask and not sys.stdin.isatty():
        fail(f"{small}: {advice}", USAGE)
    typer.echo(f"cairn: {small}: {advice}", err=True)
    if must_ask:
        typer.confirm("Start it all the same?", abort=True, err=True)


def _ready(server: "RunningServer", settings: "Settings", model: str | None, *, may_start: bool) -> "RunningServer":
    """The server, with its key only if it asks for one. It is started if it does not answer. Raises NoAnswer."""
    import asyncio

    from interfaces.cli.client.running_server import NotRunning
    from interfaces.cli.client.served_models import with_needed_key
    from interfaces.cli.server.background import start_server
    from interfaces.composition.backends import cache_dir

    try:
        return asyncio.run(with_needed_key(server))
    except NotRunning:
        if not may_start:
            raise
    if not settings.server.port:
        fail("server.port is 0, a free one, so that the server is not found again: set a port", USAGE)
    typer.echo(f"cairn: no server answers at {server.url}; starting one", err=True)
    arguments = [] if model is None else ["--", model]
    pid = start_server(server, arguments, cache_dir() / f"server-{settings.server.port}.log")
    if pid is not None:
        typer.echo(f"cairn: it goes on when the agent has ended; to stop it: kill {pid}", err=True)
    return asyncio.run(with_needed_key(server))


async def _target(server: "RunningServer", model: str | None) -> Target:
    """The target with its context, which is known once the model is loaded. `model` None: the server's default. Raises
    NoAnswer."""
    from interfaces.cli.client.running_server import NoAnswer
    from interfaces.cli.client.served_models import chat_models, default_model
    from interfaces.http.native.tokenize import TokenizedBody

    chats = await chat_models(server)
    wanted = model or await default_model(server)
    if wanted not in chats:
        near = ", ".join(map(printable, near_names(wanted, chats) or list(chats)[:MAX_NAMED]))
        raise NoAnswer(f"--model must name a model that chats at {server.url}, as {near or 'none does'}", USAGE)
    if chats[wanted] != "loaded":
        typer.echo(f"cairn: the server loads {printable(wanted)}", err=True)
    answer = await server.ask("/tokenize", json.dumps({"model": wanted, "prompt": "a"}).encode())
    context = server.understood(answer, TokenizedBody).max_model_len
    try:
        return Target(server.url, wanted, context, server.api_key)
    except DomainError as error:
        raise NoAnswer(error.message, USAGE) from None


def _planned_target(server: "RunningServer", settings: "Settings", model: str | None) -> Target:
    """The target of a server that does not run, with the context by the files of the model, if they are here."""
    from interfaces.composition.backends import choose_backend
    from interfaces.composition.memory import plan_memory

    name = model or settings.model.default
    typer.echo(f"cairn: no server answers at {server.url}; this is for the one of the settings", err=True)
    try:
        named = replace(settings, model=replace(settings.model, default=name))
        context = plan_memory(named, choose_backend(named), None, None, 1)[0].context_length
    except DomainError as error:
        fail(f"the context of {printable(name)} is not known: {error.message}; start the server first")
    return Target(server.url, name, context, server.api_key)


def _shown(target: Target) -> Target:
    """The target with a placeholder for its key: what is printed lands in files and histories."""
    return Target(target.url, target.model, target.context, None if target.key is None else PLACEHOLDER)


def as_shell(name: str, setup: Setup, arguments: Sequence[str]) -> str:
    """The start of an agent as lines for a POSIX shell."""
    lines = [f"unset {variable}" for variable in setup.removed]
    lines += [f"export {variable}={shlex.quote(value)}" for variable, value in setup.variables.items()]
    return "\n".join([*lines, shlex.join([name, *setup.arguments, *arguments])])


def _become(command: str, agent: Agent, target: Target, arguments: list[str]) -> None:
    """Replaces this process by the agent."""
    setup = agent.setup(target)
    typer.echo(f"cairn: {agent.title} with {printable(target.model)} at {target.url}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(command, [command, *setup.arguments, *arguments], environment(os.environ, setup, target.url))
    except OSError as error:
        fail(f"{command} cannot be run: {error.strerror or error}")


def environment(inherited: Mapping[str, str], setup: Setup, url: str) -> dict[str, str]:
    """The variables of the agent's process. No proxy stands between this machine and itself."""
    from urllib.parse import urlsplit

    from application.settings import is_loopback

    found = {name: value for name, value in inherited.items() if name not in setup.removed} | dict(setup.variables)
    host = urlsplit(url).hostname or ""
    if is_loopback(host):
        for name in ("NO_PROXY", "no_proxy"):
            found[name] = ",".join(dict.fromkeys([*filter(None, inherited.get(name, "").split(",")), host]))
    return found
