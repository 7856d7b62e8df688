"""The errors of the domain: one root, each class with a stable code and whether a retry can help.

Expected outcomes (a miss, a full queue that drains) are values elsewhere; these are the answers a client gets.
"""

from typing import ClassVar

from domain.printable import PRINTABLE_CHARS, writable

MAX_MESSAGE_CHARS = 4_000
"""The limit on the length of a message. Characters that UTF-8 cannot encode are escaped in it."""


class DomainError(Exception):
    """The root of every error that Cairn raises on purpose. `param` names the offending request field, if any.
    `numbers`: those of the message, by the attributes that the class declares. Raises TypeError for others."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None, **numbers: int) -> None:
        message = writable(message[: MAX_MESSAGE_CHARS + 1])
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 3] + "..."
        super().__init__(message)
        self.message = message
        self.param = writable(param[:PRINTABLE_CHARS]) if param is not None else None
        for name, number in numbers.items():
            if not isinstance(getattr(type(self), name, None), int):
                raise TypeError(f"{type(self).__name__} has no number {name!r}")
            setattr(self, name, number)


class InvalidRequest(DomainError):
    """The request can never succeed as it stands."""

    code = "invalid_request"


def require(condition: bool, param: str, message: str) -> None:
    """Raises InvalidRequest unless the condition holds. `message` continues the sentence that begins with the field's
    name."""
    if not condition:
        raise InvalidRequest(f"{param} {message}", param=param)


class ContextOverflow(InvalidRequest):
    """The prompt and the shortest answer to it do not fit the model's context.

    The numbers in the message, in tokens, for dialects whose clients read them: `num_prompt` (a lower bound, where
    the length of the text proved it) and `context_length`.
    """

    code = "context_length_exceeded"
    num_prompt: int = 0
    context_length: int = 0


class PrefillMemoryExceeded(ContextOverflow):
    """The request fits the model and can never fit the memory of this server, however long it waited.

    Reported like a context that is too small, because the remedy is the same: a shorter prompt or answer.
    `context_length`: how many tokens of prompt and answer together memory has room for; it depends on the request.
    Bytes: `estimated_bytes` at the worst moment, `available_bytes` of `limit_bytes` when nothing else runs.
    `largest_prompt`: in tokens, of those that would fit with an answer as long; 0 when none does.
    """

    code = "prefill_memory_exceeded"
    estimated_bytes: int = 0
    available_bytes: int = 0
    limit_bytes: int = 0
    largest_prompt: int = 0


class ImagesUnseen(InvalidRequest):
    """The model cannot see the images of the request."""

    code = "images_unseen"


class FileUnreadable(InvalidRequest):
    """The text of a file in the request cannot be read."""

    code = "file_unreadable"


class TemplateFailed(InvalidRequest):
    """The model's chat template refuses these messages."""

    code = "template_failed"


class ModelNotFound(DomainError):
    """No model of that name is served here."""

    code = "model_not_found"


class DocumentNotFound(DomainError):
    """The client has no document of that name."""

    code = "not_found"


class RequestNotFound(DomainError):
    """No open or recently ended request has that id."""

    code = "not_found"


class ModelLoadFailed(DomainError):
    """The model exists but could not be loaded; the message says why."""

    code = "model_load_failed"


class ModelExceedsMemory(ModelLoadFailed):
    """The model's weights exceed the limit, even with every other model unloaded. The numbers in the message, in bytes,
    where they are known."""

    code = "model_exceeds_memory"
    needed_bytes: int = 0
    available_bytes: int = 0
    limit_bytes: int = 0


class DownloadStopped(ModelLoadFailed):
    """A user ended the download. What has arrived of it is kept."""


class QueueFull(DomainError):
    """The bounded request queue is full. `retry_after_s` is an estimate in seconds."""

    code = "queue_full"
    retryable = True
    retry_after_s: int = 1


class ModelsBusy(QueueFull):
    """The model is not loaded, and the loaded models were in use for as long as a request may wait for room."""

    code = "models_busy"


class MemoryBusy(QueueFull):
    """The request waited for memory for the longest permitted time, and running requests released too little."""

    code = "memory_busy"
    retry_after_s = 10


class LimitReached(QueueFull):
    """The client has reached the limit of its key."""

    code = "rate_limit_exceeded"


class NotAllowed(DomainError):
    """The client's key does not permit this."""

    code = "not_allowed"


class InvalidKeys(DomainError):
    """The configured keys are invalid; the message contains names of keys, never their values."""

    code = "invalid_keys"


class ServerUnavailable(DomainError):
    """The engine is stopping, stopped or not ready. `retry_after_s` is an estimate in seconds."""

    code = "server_unavailable"
    retryable = True
    retry_after_s: int = 1


class ToolServerUnavailable(ServerUnavailable):
    """A server of tools cannot be reached, has failed, or took too long."""

    code = "tool_server_unavailable"


class ToolNotFound(DomainError):
    """A server of tools, or the tool, does not exist for this client."""

    code = "tool_not_found"


class ToolCallFailed(DomainError):
    """A server of tools answered a call with an error of the protocol, whose number is `number`."""

    code = "tool_call_failed"
    number: int = 0


class SettingsUnwritable(ServerUnavailable):
    """The configuration file cannot be read or written; nothing was changed."""

    code = "settings_unwritable"
    retryable = False


class SettingsChanged(DomainError):
    """Another program changed the configuration file since it was read; nothing was changed."""

    code = "settings_changed"


class RequestCancelled(ServerUnavailable):
    """An operator of the server cancelled this request. Clients must not retry it automatically."""

    code = "request_cancelled"
    retryable = False

    def __init__(self, message: str = "the request was cancelled by the server") -> None:
        super().__init__(message)


class StoreUnresponsive(ServerUnavailable):
    """The store did not answer in time."""


class ComputeFailed(DomainError):
    """Computing this one request failed; others are unaffected."""

    code = "compute_failed"


class EngineLost(ComputeFailed):
    """The engine was lost more than once while it computed this request, which is not resumed again."""

    code = "engine_lost"


class IllegalTransition(DomainError):
    """A state machine was asked for a transition that its table lacks: a defect in Cairn."""

    code = "illegal_transition"
