"""The requests of a server as its operator sees them: open ones, the last that ended, one in detail, and cancelling.

Text of prompts is shown by the rule of `/v1/cache/explain`: only where a setting allows it, and only to a client with
the key and the salt of the request.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from application.services.request_timelines import RequestTimeline, RequestTimelines
from application.services.text_side.answers.open_requests import OpenRequests, Preparation
from application.services.text_side.models.model_pool import ModelPool
from domain.errors import RequestNotFound
from domain.ids import RequestId
from domain.prefix.explanation import Explanation
from domain.printable import printable
from domain.request.document import Owner

MAX_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsSeen:
    """The requests of a server. `preparing`: those not in the queue yet, the longest waiting first. `open`: the longest
    open first. Both hold at most MAX_SHOWN of `num_preparing` and `num_open`. `ended`: the latest first."""

    num_preparing: int
    preparing: Sequence[Preparation]
    num_open: int
    open: Sequence[RequestTimeline]
    ended: Sequence[RequestTimeline]


@dataclass(frozen=True, slots=True)
class RequestShown:
    """One request. `explanation`: with text if `shows_text`."""

    seen: RequestTimeline
    explanation: Explanation | None
    shows_text: bool


class WatchRequests:
    """Event loop only."""

    def __init__(self, timelines: RequestTimelines, requests: OpenRequests, pool: ModelPool) -> None:
        self._timelines = timelines
        self._requests = requests
        self._pool = pool

    @property
    def max_queue(self) -> int:
        """Choices that may wait or be prepared at once."""
        return self._requests.max_queue

    def failures(self) -> Mapping[str, int]:
        """Events that could not be folded into the timelines, by type."""
        return self._timelines.failures()

    def all(self, most_ended: int) -> RequestsSeen:
        """Returns all requests, without any text."""
        timelines, preparing = self._timelines, self._requests.preparations()
        return RequestsSeen(
            num_preparing=len(preparing),
            preparing=preparing[:MAX_SHOWN],
            num_open=timelines.num_open,
            open=timelines.open(MAX_SHOWN),
            ended=timelines.ended(most_ended),
        )

    async def one(self, id: RequestId, viewer: Owner) -> RequestShown:
        """Returns one request, with text only while its model is loaded. Raises RequestNotFound."""
        timeline = self._timelines.get(id)
        if timeline is None:
            raise RequestNotFound(f"no request '{printable(id)}' is open or among the last that ended")
        found = timeline.tokens_for(viewer)
        model = next((one for one in self._pool.loaded() if one.source.id == timeline.model), None)
        has_tokens = found is not None and found.divergence is not None and bool(found.divergence.prompt_ids)
        if found is None or not has_tokens or model is None:
            return RequestShown(timeline, timeline.without_tokens(), shows_text=False)
        return RequestShown(timeline, await asyncio.to_thread(found.with_text, model.tokenizer.decode), shows_text=True)

    def cancel(self, id: RequestId) -> None:
        """Cancels a request, as `OpenRequests.cancel` does."""
        self._requests.cancel(id)
