"""Whether and how hard a model is to think, as arguments of its chat template.

Templates know the switch and three efforts. One that knows neither ignores both.
"""

from domain.chat import Json
from domain.request import THINKING_SWITCHES

_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def thinking_kwargs(is_on: bool | None, effort: str | None) -> dict[str, Json]:
    """`is_on` None leaves it to the model. An effort that nobody knows is passed on as it is."""
    kwargs: dict[str, Json] = {} if is_on is None else dict.fromkeys(THINKING_SWITCHES, is_on)
    if effort is not None:
        kwargs["reasoning_effort"] = _EFFORTS.get(effort, effort)
    return kwargs


__all__ = ("thinking_kwargs",)
