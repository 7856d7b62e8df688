"""Events of the engine and the server, as typed values. Times are monotonic nanoseconds from the Clock port.

They are emitted to the EventSink; spans, metrics, the log and the admin page are derived from them. They hold no text
of a prompt or an answer. A request's events are emitted choice by choice, by the id of the choice.
"""

from typing import TypeAlias

from application.events.request import *  # noqa: F403
from application.events.request import RequestEvent
from application.events.server import *  # noqa: F403
from application.events.server import ServerEvent

Event: TypeAlias = RequestEvent | ServerEvent
