"""What is wrong with one tool call of an answer, as a value."""

from dataclasses import dataclass
from enum import Enum


class ProblemKind(Enum):
    """MALFORMED_ARGUMENTS: no JSON object, or one that was not ended. SCHEMA_MISMATCH: not what the tool asks for."""

    UNKNOWN_TOOL = "unknown_tool"
    MALFORMED_ARGUMENTS = "malformed_arguments"
    SCHEMA_MISMATCH = "schema_mismatch"


@dataclass(frozen=True, slots=True)
class CallProblem:
    """`detail` is one sentence; it holds no more of the arguments than their keys."""

    call_id: str
    kind: ProblemKind
    detail: str
