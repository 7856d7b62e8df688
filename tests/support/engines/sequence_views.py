"""Views of sequences as the engine makes them, by phase."""

from dataclasses import fields
from typing import Any

from domain.ids import SequenceId
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import DecodingView, PrefillingView, RestoringView, SequenceView, WaitingView

_KINDS: dict[Phase, type[SequenceView]] = {
    Phase.QUEUED: WaitingView,
    Phase.PREEMPTED: WaitingView,
    Phase.RESTORING: RestoringView,
    Phase.PREFILLING: PrefillingView,
    Phase.DECODING: DecodingView,
}


def view_of(id: int, phase: Phase, num_prompt: int, num_computed: int = 0, **facts: Any) -> Any:
    """`num_prompt` and `num_computed` count where the phase has them; the others must be of the phase."""
    kind = _KINDS[phase]
    given = {"num_prompt": num_prompt, "num_computed": num_computed, "is_preempted": phase is Phase.PREEMPTED}
    names = {field.name for field in fields(kind)}
    return kind(SequenceId(id), **{name: value for name, value in given.items() if name in names}, **facts)


def moved(view: SequenceView, phase: Phase, **changes: Any) -> Any:
    """The view in another phase, with all that both phases have."""
    kind = _KINDS[phase]
    names = {field.name for field in fields(kind)} - {"is_preempted"}
    kept = {field.name: getattr(view, field.name) for field in fields(view) if field.name in names}
    preempted: dict[str, Any] = {"is_preempted": True} if phase is Phase.PREEMPTED else {}
    return kind(**{**kept, **preempted, **changes})
