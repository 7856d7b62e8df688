"""The way to the store: records wait here, are written by a thread of their own, and can be read all the while.

    offer ──► WriteBehind ──► queue (order, bounds, counts)
                   │ a thread          ▲
                   └──► the store      reading: here first, the store second

Only WriteBehind and the values that it answers with are for others.
"""

from application.services.prefix.write_behind.queue import QUEUE_FULL, SHUTDOWN, QueueCounts
from application.services.prefix.write_behind.writer import FAILED_FAULT, WriteBehind

__all__ = ("FAILED_FAULT", "QUEUE_FULL", "SHUTDOWN", "QueueCounts", "WriteBehind")
