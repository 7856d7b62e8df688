"""What became of each request, folded from its events: when it entered each phase and how much was computed.

The one place that knows which event follows which; metrics and the request log read the result. Events of a request
that is unknown (queued before the fold began, or dropped) and events out of order change nothing.

         RequestQueued  RequestWaits*  RequestAdmitted    DecodeStarted  FirstToken      RequestEnded
    ----------|-- waiting ---------|-- prefilling ----|---- decoding ----|---------|

Who is preempted stays in its phase: what it waits for then is part of how long that took.

Memory is bounded: past `max_open` requests the oldest is dropped, which only happens if ends get lost.
"""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from enum import Enum

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
from domain.ids import ModelId, RequestId

MAX_OPEN = 131_072
"""More than the longest queue that can be set."""


class Stage(Enum):
    """Where a request is. Prefilling includes restoring what is not computed."""

    WAITING = "queue"
    PREFILLING = "prefill"
    DECODING = "decode"


@dataclass(slots=True)
class RequestTimeline:
    """Monotonic nanoseconds; None for what did not happen (yet). `requested_model`: the name the client sent.
    `client`: the name of its key, empty for none. `waits_for`: a WaitReason
    value, empty where it does not wait; `waited_for`: each that it ever waited for. `followed`: whose computing of the
    same prefix it waited for, empty for nobody's. `matched`: what its first lookup found. `choice`: which of its
    request's."""

    id: RequestId
    model: ModelId
    requested_model: ModelId
    is_chat: bool
    num_prompt_tokens: int
    queued_ns: int
    stage: Stage = Stage.WAITING
    admitted_ns: int | None = None
    decode_started_ns: int | None = None
    first_token_ns: int | None = None
    num_computed_tokens: int = 0
    client: str = ""
    waits_for: str = ""
    waited_for: tuple[str, ...] = ()
    followed: str = ""
    matched: PrefixMatched | None = None
    num_preemptions: int = 0
    last_tokens_ns: int | None = None
    choice: int = 0

    def time_in_s(self, stage: Stage, ended_ns: int) -> float | None:
        """Seconds spent in a stage by a request that ended at `ended_ns`; None if it never got there."""
        bounds = {
            Stage.WAITING: (self.queued_ns, self.admitted_ns),
            Stage.PREFILLING: (self.admitted_ns, self.decode_started_ns),
            Stage.DECODING: (self.decode_started_ns, None),
        }
        start, end = bounds[stage]
        return None if start is None else ((ended_ns if end is None else end) - start) / 1e9

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first_token_ns is None else (self.first_token_ns - self.queued_ns) / 1e9

    def time_per_output_token_s(self, ended_ns: int, num_tokens: int) -> float | None:
        """Mean seconds for a token after the first."""
        if self.first_token_ns is None or num_tokens < 2:
            return None
        return (ended_ns - self.first_token_ns) / 1e9 / (num_tokens - 1)


class RequestTimelines:
    """The open requests. One caller at a time, except where any thread may call."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: OrderedDict[RequestId, RequestTimeline] = OrderedDict()
        self._counts: Counter[tuple[ModelId, Stage]] = Counter()
        self._waits: Counter[str] = Counter()

    def queued(self, event: RequestQueued) -> RequestTimeline:
        timeline = RequestTimeline(
            id=event.id,
            model=event.model,
            requested_model=event.requested_model,
            is_chat=event.is_chat,
            num_prompt_tokens=event.num_prompt_tokens,
            queued_ns=event.at_ns,
            client=event.client,
            choice=event.choice,
        )
        if (replaced := self._open.pop(event.id, None)) is not None:
            self._forget(replaced)
        self._open[event.id] = timeline
        self._count(timeline, 1)
        if len(self._open) > self._max_open:
            self._forget(self._open.popitem(last=False)[1])
        return timeline

    def waits(self, event: RequestWaits) -> RequestTimeline | None:
        timeline = self._at(event.id, Stage.WAITING)
        if timeline is not None:
            self._wait(timeline, event.reason)
        return timeline

    def admitted(self, event: RequestAdmitted) -> RequestTimeline | None:
        timeline = self._at(event.id, Stage.WAITING)
        if timeline is not None:
            timeline.admitted_ns = event.at_ns
            self._wait(timeline, "")
            self._move(timeline, Stage.PREFILLING)
        return timeline

    def matched(self, event: PrefixMatched) -> RequestTimeline | None:
        """None for a lookup that is not its request's: of a further choice, which takes over what the first one has,
        and once more after a preemption."""
        timeline = self._open.get(event.id)
        if timeline is None or timeline.matched is not None:
            return None
        timeline.matched = event
        return None if timeline.choice else timeline

    def awaited(self, event: PrefixAwaited) -> RequestTimeline | None:
        timeline = self._open.get(event.id)
        if timeline is not None:
            timeline.followed = event.owner
        return timeline

    def preempted(self, event: RequestPreempted) -> RequestTimeline | None:
        timeline = self._open.get(event.id)
        if timeline is not None:
            timeline.num_preemptions += 1
        return timeline

    def computed(self, event: PrefillChunkComputed) -> RequestTimeline | None:
        timeline = self._open.get(event.id)
        if timeline is not None and not event.is_resumed:
            timeline.num_computed_tokens += event.end - event.start
        return timeline

    def get(self, id: RequestId) -> RequestTimeline | None:
        """One that is open."""
        return self._open.get(id)

    def decode_started(self, event: DecodeStarted) -> RequestTimeline | None:
        timeline = self._at(event.id, Stage.PREFILLING)
        if timeline is not None:
            timeline.decode_started_ns = event.at_ns
            self._move(timeline, Stage.DECODING)
        return timeline

    def first_token(self, event: FirstToken) -> RequestTimeline | None:
        timeline = self._at(event.id, Stage.DECODING)
        if timeline is None or timeline.first_token_ns is not None:
            return None
        timeline.first_token_ns = event.at_ns
        return timeline

    def ended(self, event: RequestEnded) -> RequestTimeline | None:
        """The request's timeline, which is forgotten here."""
        timeline = self._open.pop(event.id, None)
        if timeline is not None:
            self._forget(timeline)
        return timeline

    def oldest_queued_ns(self) -> int | None:
        """When the oldest open request was queued; None when none is. Any thread."""
        try:
            return next((timeline.queued_ns for timeline in self._open.values()), None)
        except RuntimeError:  # it changed meanwhile: something happens
            return None

    def num_open(self) -> dict[tuple[ModelId, Stage], int]:
        """Requests by model and stage, zeros included for what was there once. Any thread."""
        return dict(self._counts)

    def num_waiting_for(self) -> dict[str, int]:
        """Requests by what they wait for, zeros included for what was waited for once. Any thread."""
        return dict(self._waits)

    def _wait(self, timeline: RequestTimeline, reason: str) -> None:
        for which, change in ((timeline.waits_for, -1), (reason, 1)):
            if which:
                self._waits[which] += change
        timeline.waits_for = reason
        if reason and reason not in timeline.waited_for:
            timeline.waited_for += (reason,)

    def _at(self, id: RequestId, stage: Stage) -> RequestTimeline | None:
        timeline = self._open.get(id)
        return timeline if timeline is not None and timeline.stage is stage else None

    def _forget(self, timeline: RequestTimeline) -> None:
        self._count(timeline, -1)
        self._wait(timeline, "")

    def _move(self, timeline: RequestTimeline, stage: Stage) -> None:
        self._count(timeline, -1)
        timeline.stage = stage
        self._count(timeline, 1)

    def _count(self, timeline: RequestTimeline, change: int) -> None:
        self._counts[timeline.model, timeline.stage] += change


__all__ = ("MAX_OPEN", "RequestTimeline", "RequestTimelines", "Stage")
