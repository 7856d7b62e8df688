"""Images, documents and sound, which no model here takes in yet.

Refused by name as long as nothing is lost by it: in a conversation that has no answer yet. Later a client cannot take
them back: agents keep a turn that failed, so a refusal would end the session. There the model is told that something is
left out, and so it is where a tool returned it.
"""

from domain.errors import InvalidRequest


def unseen(what: str, path: str, *, is_refused: bool) -> str:
    """What the model reads instead. `what`: singular, as "image". Raises InvalidRequest if `is_refused`."""
    if is_refused:
        raise InvalidRequest(f"{path}: {what} input is not supported, only text", param=path)
    return f"[{what} left out: this model reads text only]"


__all__ = ("unseen",)
