"""One decode step over all models: each computes its own sequences together, and every one of them has an outcome."""

from collections.abc import Iterable, Iterator, Mapping

from application.ports.compute import DecodeResult, LoadedModel
from application.services.token_side.sequence_run import SequenceRun
from domain.errors import ComputeFailed
from domain.ids import ModelId, SequenceId

NOT_TOLD = ComputeFailed("the model did not say what became of this sequence")


def decode_all(
    models: Mapping[ModelId, LoadedModel], runs: Iterable[SequenceRun]
) -> Iterator[tuple[SequenceRun, DecodeResult | Exception]]:
    """Model by model. An exception: what the port does not promise, and nothing of that batch is safe then."""
    by_model: dict[ModelId, dict[SequenceId, SequenceRun]] = {}
    for run in runs:
        by_model.setdefault(run.submission.model, {})[run.id] = run
    for model_id, members in by_model.items():
        try:
            told = {result.id: result for result in models[model_id].decode(list(members))}
        except Exception as error:
            yield from ((run, error) for run in members.values())
            continue
        for id, run in members.items():
            yield run, told.get(id) or DecodeResult(id, error=NOT_TOLD)


__all__ = ("decode_all",)
