"""What a request's sampling is where the client did not say: what is set for the model, then what its makers advise.

the client's own  >  the model's table  >  generation_config.json  >  neutral (SamplingParams)
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from domain.request.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """None: nothing is said. Ranges as in SamplingParams."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def __post_init__(self) -> None:
        self.apply(SamplingParams.chosen())

    def over(self, other: "SamplingDefaults") -> "SamplingDefaults":
        """These, and the other's where they say nothing."""
        return replace(other, **self.said())

    def apply(self, sampling: SamplingParams) -> SamplingParams:
        """The same sampling, with these for what its client left open."""
        wanted = {name: value for name, value in self.said().items() if name in sampling.left_open}
        return replace(sampling, **wanted) if wanted else sampling

    def said(self) -> dict[str, Any]:
        """What is not None, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
