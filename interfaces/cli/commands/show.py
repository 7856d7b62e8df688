"""`cairn show`: a model of this machine by its files, without loading it."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from domain.byte_size import format_bytes
from domain.errors import DomainError, ModelNotFound
from domain.ids import ModelId
from domain.models.state_layout import StateKind
from domain.printable import printable
from interfaces.cli.terminal.ending import fail
from interfaces.cli.terminal.options import Backend, Model, ModelDirs, model_flags, settings_with

if TYPE_CHECKING:
    from domain.models.state_layout import StateLayout
    from domain.scheduling.memory_plan import MemoryPlan, PlannedModel
    from interfaces.composition.backends import Backend as ComputeBackend

WIDTH = 65
"""The columns of a text on a terminal of 80; a pipe gets it in one line."""

CONTEXTS = (8_192, 32_768, 131_072)
"""The contexts whose memory is shown, as far as the model reaches."""


def show(model: Model = None, model_dir: ModelDirs = None, backend: Backend = None) -> None:
    """Show a model: architecture, context, layers, template, parsers, and its memory by context."""
    from interfaces.composition.backends import choose_backend
    from interfaces.composition.memory import plan_memory
    from interfaces.composition.near_models import near_models

    settings = settings_with(model_flags(model, None, model_dir, backend)).settings
    id = settings.model.default
    try:
        chosen = choose_backend(settings)
        planned, plan = plan_memory(settings, chosen, None, None, 1)
        lines = [*_files(chosen, id), *_lines(planned, plan)]
    except ModelNotFound as error:
        fail(error.message + near_models(settings, id))
    except DomainError as error:
        fail(error.message)
    for name, text in lines:
        parts = wrap(printable(text), WIDTH) if sys.stdout.isatty() else [printable(text)]
        for label, part in zip_longest([name], parts, fillvalue=""):
            typer.echo(f"{label:<14} {part}")


def _files(backend: "ComputeBackend", id: str) -> Iterator[tuple[str, str]]:
    """The lines from the files beside the weights; none for a folder without weights."""
    from interfaces.cli.server.server_process import describe_template

    source = backend.repository.find(ModelId(id))
    if source is None:
        return
    yield "model", source.id
    yield "folder", source.path
    if source.note:
        yield "note", source.note
    yield "answers", ", ".join(one.value for one in sorted(source.use.capabilities, key=lambda one: one.value))
    form = source.form
    if form.quantization:
        yield "weights are", " ".join(filter(None, (form.quantization, form.parameters(source.file_bytes))))
    tokenizer = backend.tokenizers.load(source)
    yield "template", describe_template(tokenizer.template_features)
    yield "read as", tokenizer.output_format


def _lines(model: "PlannedModel", plan: "MemoryPlan") -> Iterator[tuple[str, str]]:
    yield "architecture", model.model_type
    yield "context", f"{model.context_length:,} tokens ({model.context.origin})"
    yield "layers", describe_layers(model.layout)
    yield "weights", format_bytes(plan.shape.weight_bytes)
    for context in (*(one for one in CONTEXTS if one < model.context_length), model.context_length):
        needed = replace(plan, context=context)
        fits = "" if needed.fits else ", does not fit here"
        yield "memory", f"{format_bytes(needed.needed_bytes)} with {context:,} tokens{fits}"


def describe_layers(layout: "StateLayout") -> str:
    """The layers by what they keep: `6 of all tokens, 18 of the last 512`."""
    kinds = {StateKind.SLICED: "of all tokens", StateKind.RECURRENT: "of one state for all"}
    parts = [
        f"{num} {kinds.get(kind) or (f'of the last {window}' if window else kind.value)}"
        for (kind, window), num in layout.num_layers.items()
    ]
    return ", ".join(parts) or "none that keep state"
