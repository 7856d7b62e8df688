"""A tool call as the model wrote it, and how it is put back into a conversation that a client sends.

Clients return calls re-serialised, reordered or trimmed. Rendered so, the next prompt would part from what was computed
at the first call; with the generated text put back it goes on from there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from domain.request.chat import ChatMessage, ToolCall


@dataclass(frozen=True, slots=True)
class GeneratedCall:
    """`arguments`: the text as generated, valid JSON or not. `reasoning`: what was thought before it; of several calls
    in one turn the first has it. `is_own_id`: the id is ours and unguessable, not one that the model wrote."""

    name: str
    arguments: str
    reasoning: str = ""
    is_own_id: bool = True

    def is_of(self, call: ToolCall) -> bool:
        """Whether this is what the model wrote for a call. Ids that models write (`functions.ls:0`) are no proof: for
        those the arguments must say the same."""
        return call.name == self.name and (self.is_own_id or _value(call.arguments) == _value(self.arguments))


def with_generated(message: ChatMessage, known: Mapping[str, GeneratedCall]) -> ChatMessage:
    """The message with what was generated for it. `known`: by the id of the call."""
    found = {call.id: known[call.id] for call in message.tool_calls if call.id in known and known[call.id].is_of(call)}
    if not found:
        return message
    return replace(
        message,
        reasoning=next((one.reasoning for one in found.values() if one.reasoning), message.reasoning),
        tool_calls=tuple(
            replace(call, arguments=found[call.id].arguments, is_generated=True) if call.id in found else call
            for call in message.tool_calls
        ),
    )


def _value(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
