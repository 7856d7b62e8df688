"""Whether an answer calls tools, which of them, and how often. The prompt shows all tools whatever is chosen, so that a
prefix does not change with the choice."""

from dataclasses import dataclass
from enum import Enum


class CallMode(Enum):
    """NONE: what looks like a call is text. REQUIRED: at least one call, and no text beside it."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names`: the only tools that may be called; empty for all. `one_call`: no more than one."""

    mode: CallMode = CallMode.AUTO
    names: tuple[str, ...] = ()
    one_call: bool = False


def named_tool(name: str) -> ToolChoice:
    """One call, of this tool."""
    return ToolChoice(CallMode.REQUIRED, (name,), one_call=True)
