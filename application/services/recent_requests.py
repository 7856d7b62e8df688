"""Requests that are open, and the last that ended: who asked for what, how far each is, and why no more was reused.

Folded from events, choice by choice, and from what each lookup found (`explained`). Bounded: the last `max_ended` are
kept; an end that gets lost costs an entry, and past `max_open` of them the oldest goes.

No text: of a divergence the tokens are kept only where `keeps_tokens` says so, with whose they are, and whoever shows
them must ask `tokens_for`.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from application.events import (
    DecodeStarted,
    FirstToken,
    PrefillChunkComputed,
    PrefixAwaited,
    PrefixMatched,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestQueued,
    RequestWaits,
)
from application.services.event_router import EventRouter
from application.services.request_timelines import MAX_OPEN, RequestTimeline, RequestTimelines
from application.token_events import TokensReceived
from domain.document import Owner
from domain.explanation import Explanation
from domain.ids import RequestId
from domain.request import GenerationRequest

MAX_ENDED = 256


@dataclass(slots=True)
class SeenRequest:
    """One choice. `num_done`: prompt tokens that are in its state, reused or computed. `num_output`: tokens that the
    engine handed over; of one that has ended, those that counted. `is_preempted`: it waits for memory to go on.
    `ended`: None while it is open. `explanation`: of its lookup; None before. `owner`: whose tokens that may hold."""

    timeline: RequestTimeline
    operation: str = ""
    priority: str = ""
    num_done: int = 0
    num_output: int = 0
    is_preempted: bool = False
    ended: RequestEnded | None = None
    explanation: Explanation | None = None
    owner: Owner | None = None

    @property
    def id(self) -> RequestId:
        return self.timeline.id

    @property
    def reused(self) -> Mapping[str, int]:
        """Tokens by tier, of its first lookup."""
        matched = self.timeline.matched
        return {} if matched is None else matched.reused

    def tokens_for(self, viewer: Owner) -> Explanation | None:
        """The explanation, with tokens only for whose they are."""
        return self.explanation if self.owner == viewer else self.without_tokens()

    def without_tokens(self) -> Explanation | None:
        """The explanation for everybody."""
        return None if self.explanation is None else self.explanation.without_tokens()


@dataclass(frozen=True, slots=True)
class _Explained:
    """No event of all: it holds tokens of prompts."""

    id: RequestId
    request: GenerationRequest
    told: Explanation


class RecentRequests(EventRouter):
    """What it returns are copies."""

    def __init__(self, *, keeps_tokens: bool = False, max_ended: int = MAX_ENDED, max_open: int = MAX_OPEN) -> None:
        self._keeps_tokens = keeps_tokens
        self._max_open = max_open
        self._timelines = RequestTimelines(max_open)
        self._open: OrderedDict[RequestId, SeenRequest] = OrderedDict()
        self._ended: deque[SeenRequest] = deque(maxlen=max_ended)
        super().__init__(
            "recent requests",
            {
                RequestQueued: self._queued,
                RequestWaits: self._timelines.waits,
                RequestAdmitted: self._admitted,
                RequestPreempted: self._preempted,
                PrefixMatched: self._matched,
                PrefixAwaited: self._timelines.awaited,
                PrefillChunkComputed: self._computed,
                DecodeStarted: self._timelines.decode_started,
                FirstToken: self._timelines.first_token,
                TokensReceived: self._received,
                RequestEnded: self._end,
                _Explained: self._explain,
            },
        )

    def explained(self, id: RequestId, request: GenerationRequest, told: Explanation) -> None:
        """What the lookup of a choice found. As `emit`: never blocks, never raises."""
        self.emit(_Explained(id, request, told))

    @property
    def num_open(self) -> int:
        return len(self._open)

    def open(self, most: int | None = None) -> Sequence[SeenRequest]:
        """The longest open first, at most so many. Any thread."""
        return self.between(lambda: [_copy(seen) for seen in islice(self._open.values(), most)])

    def ended(self, most: int | None = None) -> Sequence[SeenRequest]:
        """The last first, at most so many. Any thread."""
        return self.between(lambda: [_copy(seen) for seen in islice(reversed(self._ended), most)])

    def get(self, id: RequestId) -> SeenRequest | None:
        """Open or ended. Any thread."""
        return self.between(lambda: self._find(id))

    def _find(self, id: RequestId) -> SeenRequest | None:
        found = self._open.get(id) or next((seen for seen in reversed(self._ended) if seen.id == id), None)
        return None if found is None else _copy(found)

    def _explain(self, found: _Explained) -> None:
        if (seen := self._open.get(found.id)) is not None:
            seen.explanation = found.told if self._keeps_tokens else found.told.without_tokens()
            seen.owner = Owner.of("", found.request.cache_salt, found.request.client)

    def _queued(self, event: RequestQueued) -> None:
        timeline = self._timelines.queued(event)
        self._open.pop(event.id, None)
        self._open[event.id] = SeenRequest(timeline, event.operation, event.priority)
        if len(self._open) > self._max_open:
            self._open.popitem(last=False)

    def _admitted(self, event: RequestAdmitted) -> None:
        self._timelines.admitted(event)
        if (seen := self._open.get(event.id)) is not None:
            seen.is_preempted = False

    def _preempted(self, event: RequestPreempted) -> None:
        self._timelines.preempted(event)
        if (seen := self._open.get(event.id)) is not None:
            seen.is_preempted = True

    def _matched(self, event: PrefixMatched) -> None:
        self._timelines.matched(event)
        if (seen := self._open.get(event.id)) is not None:
            seen.num_done = max(seen.num_done, sum(seen.reused.values()))

    def _computed(self, event: PrefillChunkComputed) -> None:
        self._timelines.computed(event)
        if (seen := self._open.get(event.id)) is not None:
            seen.num_done = min(max(seen.num_done, event.end), seen.timeline.num_prompt_tokens)

    def _received(self, event: TokensReceived) -> None:
        for id, num_tokens in event.counts:
            if (seen := self._open.get(id)) is not None:
                seen.num_output += num_tokens

    def _end(self, event: RequestEnded) -> None:
        self._timelines.ended(event)
        if (seen := self._open.pop(event.id, None)) is not None:
            seen.ended, seen.num_output, seen.is_preempted = event, event.usage.completion_tokens, False
            self._ended.append(seen)


def _copy(seen: SeenRequest) -> SeenRequest:
    return replace(seen, timeline=replace(seen.timeline))


__all__ = ("MAX_ENDED", "RecentRequests", "SeenRequest")
