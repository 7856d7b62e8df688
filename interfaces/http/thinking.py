"""Whether and how hard a model is to think, as arguments of its chat template.

Templates call the switch `enable_thinking` or `thinking`, and know three efforts. One that knows neither ignores both.
"""

from domain.chat import Json

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
    kwargs: dict[str, Json] = {} if is_on is None else {"enable_thinking": is_on, "thinking": is_on}
    if effort is not None:
        kwargs["reasoning_effort"] = _EFFORTS.get(effort, effort)
    return kwargs


__all__ = ("thinking_kwargs",)
