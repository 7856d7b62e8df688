"""`cairn plan`: the memory that a model would need, here or on another machine, without loading it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import typer

from domain.byte_size import ByteSize, format_bytes
from domain.errors import DomainError, InvalidRequest, ModelNotFound
from domain.memory.kv_bits import KVBits
from domain.memory.ledger import MemoryLimits
from domain.memory.shape import StateCost
from domain.scheduling.memory_plan import IMAGE_TOKENS, MemoryPlan, PlannedModel
from domain.setup.suggestions import suggested
from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import (
    AsJson,
    Backend,
    Dtype,
    KvBits,
    Model,
    ModelDirs,
    model_flags,
    parse_tokens,
    settings_with,
)

Context = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="Prompt and answer of each sequence: 32k. Default: the model's.")
]
Batch = Annotated[int, typer.Option(min=1, max=1024, help="Sequences at once.")]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="The memory of the machine: 64GiB, 60%. Default: of this machine.")
]

Suggest = Annotated[bool, typer.Option("--suggest", help="List models of the hub that fit; --context 32k by default.")]

AGENTS_CONTEXT = 32_768


def plan(
    model: Model = None,
    context: Context = None,
    batch: Batch = 1,
    memory: Memory = None,
    dtype: Dtype = None,
    kv_bits: KvBits = None,
    model_dir: ModelDirs = None,
    backend: Backend = None,
    suggest: Suggest = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the memory that a model needs, and what fits, from its config alone."""
    from interfaces.composition.backends import choose_backend, describe_computing
    from interfaces.composition.memory import limits_for, plan_memory
    from interfaces.composition.near_models import near_models

    tokens = None if context is None else parse_tokens(context)
    try:
        size = None if memory is None else ByteSize.parse(memory)
    except InvalidRequest as error:
        fail(error.message, USAGE)
    flags = model_flags(model, dtype, model_dir, backend) | {"model.kv_bits": ("--kv-bits", kv_bits)}
    settings = settings_with(flags).settings
    try:
        if suggest:
            limits = limits_for(settings, choose_backend(settings), size)
            bits = KVBits.parse(settings.model.kv_bits, settings.model.kv_group_size, "model.kv_bits")
            _suggest(limits, tokens or AGENTS_CONTEXT, describe_computing(settings), bits, as_json)
            return
        planned, found = plan_memory(settings, choose_backend(settings), size, tokens, batch)
    except ModelNotFound as error:
        fail(error.message + near_models(settings, settings.model.default))
    except DomainError as error:
        fail(error.message)
    if as_json:
        typer.echo(json.dumps(as_data(settings.model.default, planned, found), indent=2))
        return
    for name, text in as_lines(planned, found):
        typer.echo(f"{name:<32} {text}")


def _suggest(limits: MemoryLimits | None, context: int, device: str, kv_bits: KVBits | None, as_json: bool) -> None:
    """Prints the models of the table that fit. `device`: as `describe_computing`; on a CPU the smallest come first, and
    nothing is said of speeds, which are a GPU's."""
    if limits is None:
        fail("how much memory there is cannot be read: give it with --memory SIZE", USAGE)
    rows, on_cpu = list(suggested(limits.hard_bytes, context, kv_bits)), device.startswith("cpu")
    if on_cpu:
        rows = [(replace(one, note=one.note.partition(";")[0]), longest) for one, longest in reversed(rows)]
    if as_json:
        found = [
            {"model": one.name, "weight_bytes": one.weight_bytes, "largest_context": longest, "note": one.note}
            for one, longest in rows
        ]
        typer.echo(json.dumps({"hard_bytes": limits.hard_bytes, "context": context, "models": found}, indent=2))
        return
    typer.echo(f"computes on: {device}" + (", where models beyond some 2 GB answer slowly" if on_cpu else ""))
    typer.echo(f"may be held: {format_bytes(limits.hard_bytes)} of {format_bytes(limits.total_bytes)}")
    if not rows:
        fail(f"no model of the table fits with a context of {context} tokens: try a smaller --context")
    width = max(len(one.name) for one, _ in rows)
    typer.echo(f"{'model':<{width}} {'weights':>9} {'context up to':>14}  for")
    for one, longest in rows:
        typer.echo(f"{one.name:<{width}} {format_bytes(one.weight_bytes):>9} {longest:>14,}  {one.note}")
    typer.echo(f"To download the first: cairn models pull {rows[0][0].name}")


def as_data(id: str, model: PlannedModel, plan: MemoryPlan) -> dict[str, Any]:
    """The plan in bytes and tokens, for JSON."""
    limits = plan.limits
    return {
        "model": id,
        "model_type": model.model_type,
        "context_length": model.context_length,
        "context_from": model.context.origin,
        "weights_from": "files" if model.has_weights else "config",
        "weight_bytes": plan.shape.weight_bytes,
        "expert_bytes": model.expert_bytes,
        "states": [
            {
                "bytes_per_token": state.bytes_per_token,
                "window": state.window,
                "fixed_bytes": state.fixed_bytes,
                "buffer_step": state.step,
            }
            for state in plan.shape.states
        ],
        "snapshot_bytes": plan.snapshot_bytes,
        "context": plan.context,
        "batch": plan.batch,
        "prefill_chunk": plan.chunk,
        "sequence_bytes": plan.sequence_bytes,
        "prefill_peak_bytes": plan.prefill_bytes,
        "image_peak_bytes": plan.image_bytes,
        "decode_step_bytes": plan.decode_bytes,
        "needed_bytes": plan.needed_bytes,
        "memory_bytes": limits.total_bytes if limits else None,
        "hard_bytes": limits.hard_bytes if limits else None,
        "fits": plan.fits,
        "largest_context": plan.longest(model.context_length),
        "largest_batch": plan.most_sequences() if limits else None,
        "kv_bits": {
            text: {
                "needed_bytes": other.needed_bytes,
                "largest_context": other.longest(model.context_length),
                "largest_batch": other.most_sequences() if limits else None,
            }
            for text, other in plan.smaller_kv()
        },
    }


def as_lines(model: PlannedModel, plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    """The plan as lines, as (name, text)."""
    origin = "" if model.has_weights else " (from the config: no weights were found)"
    experts = f", {format_bytes(model.expert_bytes)} of it experts" if model.expert_bytes else ""
    yield "weights", format_bytes(plan.shape.weight_bytes) + experts + origin
    for state in plan.shape.states:
        yield _state_line(state)
    if plan.snapshot_bytes:
        yield "a snapshot", f"{format_bytes(plan.snapshot_bytes)}, and the tokens of its last block"
    yield f"a sequence of {plan.context} tokens", format_bytes(plan.sequence_bytes)
    yield f"prefill, chunks of {plan.chunk}", f"{format_bytes(plan.prefill_bytes)} for a moment, at most"
    if plan.image_bytes:
        yield f"an image of {IMAGE_TOKENS} tokens", f"{format_bytes(plan.image_bytes)} for a moment, at most"
    yield f"a decode step of {plan.batch}", f"{format_bytes(plan.decode_bytes)} for a moment, at most"
    yield f"in total, {plan.batch} at once", format_bytes(plan.needed_bytes)
    if plan.limits is None:
        yield "memory", "unknown: give it with --memory"
        return
    total, hard = format_bytes(plan.limits.total_bytes), format_bytes(plan.limits.hard_bytes)
    excess = plan.needed_bytes - plan.limits.hard_bytes
    verdict = "it fits" if plan.fits else f"it does not fit, by {format_bytes(excess)}"
    yield "may be held", f"{hard} of {total}: {verdict}"
    longest = plan.longest(model.context_length)
    bound = f" (the model's own limit: {model.context.origin})" if longest == model.context_length else ""
    yield f"longest context, {plan.batch} at once", f"{longest} tokens{bound}"
    yield f"most at once, {plan.context} tokens", f"{plan.most_sequences()} sequences"
    for text, other in plan.smaller_kv():
        longest, most = other.longest(model.context_length), other.most_sequences()
        yield f"with --kv-bits {text}", f"{longest} tokens, {plan.batch} at once; {most} sequences of {plan.context}"


def _state_line(state: StateCost) -> tuple[str, str]:
    if not state.bytes_per_token:
        return "state, whatever the length", format_bytes(state.fixed_bytes)
    reach = "" if state.window is None else f", the last {state.window}"
    fixed = f", and {format_bytes(state.fixed_bytes)}" if state.fixed_bytes else ""
    return f"state of a token{reach}", format_bytes(state.bytes_per_token) + fixed
