"""`cairn quantize`: a quantised copy of a model, made tensor by tensor. The same command continues it."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from domain.byte_size import ByteSize, format_bytes
from domain.errors import DomainError, InvalidRequest, ModelNotFound
from domain.ids import ModelId
from domain.models.quantisation import Quantisation, QuantPlan
from interfaces.cli.terminal.ending import FAILED, USAGE, fail
from interfaces.cli.terminal.options import AsJson, ModelDirs, model_flags, parse_tokens, settings_with
from interfaces.cli.terminal.progress import Meter, progress

if TYPE_CHECKING:
    from application.ports.quantiser import QuantPhase, QuantProgress, QuantReceipt
    from application.settings import Settings

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model's name, a local folder, or a hub id that is here.")
]
Bits = Annotated[int | None, typer.Option(metavar="N", help="2, 3, 4, 5, 6 or 8. Default: 4.")]
Mode = Annotated[str | None, typer.Option(metavar="MODE", help="affine, mxfp4, mxfp8 or nvfp4. Default: affine.")]
Group = Annotated[int | None, typer.Option(metavar="N", help="Values that share a scale. Default: the mode's.")]
Recipe = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="measured, mixed_2_6, mixed_3_4, mixed_3_6, mixed_4_6, or a JSON file."),
]
Size = Annotated[str | None, typer.Option(metavar="SIZE", help="Most bytes of the weights, measured: 6GB, 3.5GiB.")]
Fit = Annotated[bool, typer.Option("--fit", help="A size that fits this machine with --context and --batch.")]
Context = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="For --fit: prompt and answer: 32k. Default: the model's.")
]
Batch = Annotated[int, typer.Option(min=1, max=1024, help="For --fit: sequences at once.")]
Out = Annotated[str | None, typer.Option(metavar="NAME", help="The copy: a name in the first model folder, or a path.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")]
NoCheck = Annotated[bool, typer.Option("--no-check", help="Do not compare the copy with its source.")]
Force = Annotated[bool, typer.Option("--force", help="Also 2 bits everywhere, and vectors below 8 bits.")]
AllowPlain = Annotated[bool, typer.Option("--allow-plain", help="Also where many weights cannot be quantised.")]


def quantize(
    model: Model,
    bits: Bits = None,
    mode: Mode = None,
    group: Group = None,
    recipe: Recipe = None,
    size: Size = None,
    fit: Fit = False,
    context: Context = None,
    batch: Batch = 1,
    out: Out = None,
    dry_run: DryRun = False,
    no_check: NoCheck = False,
    force: Force = False,
    allow_plain: AllowPlain = False,
    model_dir: ModelDirs = None,
    as_json: AsJson = False,
) -> None:
    """Make a quantised copy of a model. A server may go on meanwhile; the same command continues after a stop."""
    from application.use_cases.quantise import QuantWish
    from interfaces.composition.backends import model_repository, quantiser

    settings = settings_with(model_flags(model, None, model_dir, None)).settings
    tokens = None if context is None else parse_tokens(context)
    directory, name = _place(settings, out)
    rules = _rules(recipe)
    try:
        source = model_repository(settings).find(ModelId(settings.model.default))
        if source is None:
            raise ModelNotFound(f"{model} is not here: see `cairn models`, or download it with `cairn models pull`")
        most_bytes = None if size is None else _bytes(size)
        if fit:
            most_bytes = _fitting(settings, tokens, batch)
        form = Quantisation.of(mode or "", bits, group)
        wish = QuantWish(form, recipe or "", rules, most_bytes, name, force, allow_plain, not no_check)
        order, quantised = wish.order(source, directory), quantiser()
        with ExitStack() as stack:
            plan = quantised.plan(order, _Shown(stack, quiet=as_json))
        if not as_json or dry_run:
            _show_plan(order.out, plan, as_json)
        wish.check(plan, source)
        if dry_run:
            return
        with ExitStack() as stack:
            receipt = quantised.run(order, _Shown(stack, quiet=as_json))
    except DomainError as error:
        fail(error.message, USAGE if error.param else FAILED)
    except KeyboardInterrupt:
        fail(f"interrupted; the same command continues {model}", 130)
    _show_receipt(order.out, receipt, as_json)


class _Shown:
    """Progress, a meter for each phase."""

    def __init__(self, stack: ExitStack, *, quiet: bool) -> None:
        self._stack, self._quiet = stack, quiet
        self._phase: QuantPhase | None = None
        self._meter: Meter

    def __call__(self, now: "QuantProgress") -> None:
        from application.ports.quantiser import QuantPhase

        if now.phase is not self._phase:
            self._stack.close()
            is_bytes = now.phase in (QuantPhase.READING, QuantPhase.WRITING)
            amount = format_bytes if is_bytes else "{} layers".format
            self._meter = self._stack.enter_context(
                progress(now.phase.value, now.total or None, quiet=self._quiet, amount=amount)
            )
            self._phase = now.phase
        self._meter.reach(now.done, now.total)


def _place(settings: "Settings", out: str | None) -> tuple[str, str]:
    """The folder of the copy, and its name; empty for the default."""
    if out is not None and "/" in out:
        path = Path(out).expanduser()
        return str(path.parent), path.name
    directory = next(iter(settings.model.dirs), "")
    if not directory:
        fail("model.dirs names no folder for the copy: give --model-dir DIR, or --out with a path", USAGE)
    return directory, out or ""


def _rules(recipe: str | None) -> Mapping[str, Any]:
    """The rules of a recipe's file; empty for a name."""
    if recipe is None or not ("/" in recipe or recipe.endswith(".json")):
        return {}
    try:
        found: Any = json.loads(Path(recipe).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        fail(f"--recipe: {recipe} cannot be read: {error}", USAGE)
    if not isinstance(found, dict) or not found:
        fail(f"--recipe: {recipe} must hold an object of patterns and forms", USAGE)
    return cast(dict[str, Any], found)


def _bytes(size: str) -> int:
    try:
        found = ByteSize.parse(size).num_bytes
    except InvalidRequest as error:
        fail(f"--size: {error.message}", USAGE)
    return found or fail(f"--size: {size} is no number of bytes: write 6GB or 3.5GiB", USAGE)


def _fitting(settings: "Settings", context: int | None, batch: int) -> int:
    """The most bytes of weights beside states and one step, as `cairn plan` counts them."""
    from interfaces.composition.backends import choose_backend
    from interfaces.composition.memory import plan_memory

    _, plan = plan_memory(settings, choose_backend(settings), None, context, batch)
    if plan.limits is None:
        fail("how much memory there is cannot be read: give --size", USAGE)
    beside = plan.needed_bytes - plan.shape.weight_bytes
    if (room := plan.limits.hard_bytes - beside) <= 0:
        fail(f"{format_bytes(beside)} beside the weights exceed this machine's memory: give a shorter --context")
    return room


def _show_plan(out: str, plan: QuantPlan, as_json: bool) -> None:
    facts = {
        "out": out,
        "bytes": plan.num_bytes,
        "bits_per_weight": round(plan.bits_per_weight, 3),
        "step_bytes": plan.step_bytes,
        "free_bytes": plan.free_bytes,
        "shards": plan.num_shards,
    }
    if as_json:
        paths = {matrix.path: str(matrix.form) for matrix in plan.matrices if matrix.form}
        typer.echo(json.dumps({**facts, "forms": plan.forms, "paths": paths, "copied": plan.copied}, indent=2))
        return
    share = ", ".join(f"{count / plan.num_weights:.1%} {form}" for form, count in plan.forms.items())
    typer.echo(f"copy             {out}")
    typer.echo(f"weights          {format_bytes(plan.num_bytes)}, {plan.bits_per_weight:.2f} bits each: {share}")
    if plan.copied:
        typer.echo(f"copied as it is  {len(plan.copied)} tensors, {format_bytes(plan.copied_bytes)}")
    typer.echo(f"most memory      {format_bytes(max(plan.step_bytes, plan.pass_bytes))} beside the process")
    if plan.free_bytes is not None:
        typer.echo(f"disk             {format_bytes(plan.free_bytes)} free")


def _show_receipt(out: str, receipt: "QuantReceipt", as_json: bool) -> None:
    quality = receipt.quality
    if as_json:
        facts = {"out": out, "bytes": receipt.plan.num_bytes, "bits_per_weight": receipt.plan.bits_per_weight}
        typer.echo(
            json.dumps({**facts, "quality": asdict(quality) if quality else None, "note": receipt.note}, indent=2)
        )
        return
    if quality is not None:
        typer.echo(
            f"against source   KL {quality.kl:.4f}, same token {quality.agreement:.1%},"
            f" perplexity {quality.perplexity:.2f} ({quality.source_perplexity:.2f})"
        )
    if receipt.note:
        typer.echo(receipt.note)
    typer.echo(f"To serve it: cairn serve {out}")
