"""The state of each open request and of the last that ended, folded once from events.

Metrics, the log line, the admin page and `cairn logs explain` read it, so this is the one place that knows which event
follows which. It is an event sink and must come before the sinks that read it. Events of an unknown request (queued
before the fold began, or dropped) and events out of order change nothing.

         RequestQueued  RequestWaits*  RequestAdmitted    DecodeStarted  FirstToken      RequestEnded
    ----------|-- waiting ---------|-- prefilling ----|---- decoding ----|---------|

A preempted request stays in its stage: what it waits for then is part of that stage's duration.

Memory is bounded: past `max_open` requests the oldest is dropped, which only happens if ends get lost; the last
`max_ended` that ended are kept, and of each SLOWEST_SLICE_NS of the last hour the NUM_SLOWEST whose first token took
longest. Token ids of a divergence are kept only where `keeps_tokens` is set, together with
their owner; a caller that shows them must ask `tokens_for`.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from heapq import nlargest
from itertools import islice

from application.events import (
    DecodeStarted,
    FirstToken,
    ImageSeen,
    ImagesMatched,
    PrefillChunkComputed,
    PrefixAwaited,
    PrefixMatched,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestQueued,
    RequestWaits,
    StateRestored,
    TokensReceived,
)
from application.services.event_sinks import EventRouter
from domain.ids import ModelId, RequestId
from domain.prefix.explanation import Explanation
from domain.request.document import Owner
from domain.request.request import GenerationRequest

MAX_OPEN = 131_072
"""More than the longest queue that can be set."""

MAX_ENDED = 256

NUM_SLOWEST = 20
SLOWEST_SLICE_NS, SLOWEST_SLICES = 300 * 10**9, 12
"""The slices of time of the slowest requests; the last one is not over, so that they reach back 55 to 60 minutes."""


class Stage(Enum):
    """The stage of a request. Prefilling includes restoring."""

    WAITING = "queue"
    PREFILLING = "prefill"
    DECODING = "decode"


@dataclass(slots=True)
class RequestTimeline:
    """One choice of a request. Times are monotonic nanoseconds; None for what did not happen (yet).

    `queued`: the event that began it. `waits_for`: a WaitReason value, empty while it does not wait; `waited_for`: each
    reason it ever waited for. `followed`: the request whose prefill of the same prefix it waited for. `matched`: its
    first lookup; `restored`: the state that it found, None if there was none or it was taken over. `num_done`: prompt
    tokens in its state, reused or computed. `num_output`: output tokens; once ended, those that count. `gap_ns`:
    nanoseconds a token between its last two deliveries, None for the first delivery. `explanation`: of its lookup;
    `owner`: the only one that may read its tokens. `images`: those of its prompt; None without any. `num_seen`: passes
    of the model's tower over an image, which took `tower_ns`.
    """

    queued: RequestQueued
    stage: Stage = Stage.WAITING
    admitted_ns: int | None = None
    decode_started_ns: int | None = None
    first_token_ns: int | None = None
    num_computed_tokens: int = 0
    waits_for: str = ""
    waited_for: tuple[str, ...] = ()
    followed: str = ""
    matched: PrefixMatched | None = None
    restored: StateRestored | None = None
    num_preemptions: int = 0
    is_preempted: bool = False
    num_done: int = 0
    num_output: int = 0
    last_tokens_ns: int | None = None
    gap_ns: int | None = None
    ended: RequestEnded | None = None
    explanation: Explanation | None = None
    owner: Owner | None = None
    images: ImagesMatched | None = None
    num_seen: int = 0
    tower_ns: int = 0

    @property
    def id(self) -> RequestId:
        return self.queued.id

    @property
    def model(self) -> ModelId:
        return self.queued.model

    @property
    def reused(self) -> Mapping[str, int]:
        """Tokens by tier, of its first lookup."""
        return {} if self.matched is None else self.matched.reused

    def time_in_s(self, stage: Stage, ended_ns: int) -> float | None:
        """Returns the seconds that a request ended at `ended_ns` spent in a stage; None if it never reached it."""
        bounds = {
            Stage.WAITING: (self.queued.at_ns, self.admitted_ns),
            Stage.PREFILLING: (self.admitted_ns, self.decode_started_ns),
            Stage.DECODING: (self.decode_started_ns, None),
        }
        start, end = bounds[stage]
        return None if start is None else ((ended_ns if end is None else end) - start) / 1e9

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self.first_token_ns is None else (self.first_token_ns - self.queued.at_ns) / 1e9

    def time_per_output_token_s(self, ended_ns: int, num_tokens: int) -> float | None:
        """Mean seconds for a token after the first."""
        if self.first_token_ns is None or num_tokens < 2:
            return None
        return (ended_ns - self.first_token_ns) / 1e9 / (num_tokens - 1)

    def is_first_lookup(self, event: PrefixMatched) -> bool:
        """True if `event` counts as the lookup of the request: not the lookup of a further choice, which resumes from
        the prompt of the first one, and not a repeated lookup after a preemption."""
        return self.matched is event and not self.queued.choice

    def tokens_for(self, viewer: Owner) -> Explanation | None:
        """Returns the explanation, with token ids only for their owner."""
        return self.explanation if self.owner == viewer else self.without_tokens()

    def without_tokens(self) -> Explanation | None:
        """Returns the explanation without token ids."""
        return None if self.explanation is None else self.explanation.without_tokens()


@dataclass(frozen=True, slots=True)
class _Explained:
    """An internal event: it holds tokens of prompts, so other sinks must not see it."""

    id: RequestId
    request: GenerationRequest
    explanation: Explanation


class RequestTimelines(EventRouter):
    """The fold of events into timelines. Events arrive one at a time; reads may come from any thread."""

    def __init__(self, *, keeps_tokens: bool = False, max_ended: int = MAX_ENDED, max_open: int = MAX_OPEN) -> None:
        self._keeps_tokens = keeps_tokens
        self._max_open = max_open
        self._max_ended = max_ended
        self._open: OrderedDict[RequestId, RequestTimeline] = OrderedDict()
        self._ended: OrderedDict[RequestId, RequestTimeline] = OrderedDict()
        self._slowest: dict[int, list[RequestTimeline]] = {}
        self._counts: Counter[tuple[ModelId, Stage]] = Counter()
        self._waits: Counter[str] = Counter()
        super().__init__(
            "request timelines",
            {
                RequestQueued: self._queued,
                RequestWaits: self._waiting,
                RequestAdmitted: self._admitted,
                RequestPreempted: self._preempted,
                StateRestored: self._restored,
                PrefixMatched: self._matched,
                PrefixAwaited: self._awaited,
                ImagesMatched: self._images_matched,
                ImageSeen: self._image_seen,
                PrefillChunkComputed: self._computed,
                DecodeStarted: self._decode_started,
                FirstToken: self._first_token,
                TokensReceived: self._received,
                RequestEnded: self._end,
                _Explained: self._explain,
            },
        )

    def explained(self, id: RequestId, request: GenerationRequest, explanation: Explanation) -> None:
        """Notes the explanation of a choice's lookup. Like `emit`, it never blocks and never raises."""
        self.emit(_Explained(id, request, explanation))

    def of(self, id: RequestId) -> RequestTimeline | None:
        """The timeline itself, open or ended: for event sinks, while they handle an event."""
        return self._open.get(id) or self._ended.get(id)

    def gaps(self, event: TokensReceived) -> set[tuple[ModelId, float]]:
        """The seconds a token since the last delivery of each sequence, by model: for event sinks. Sequences that
        waited equally long, as those that decode together, count once."""
        found = (self.of(id) for id, _ in event.counts)
        return {
            (one.model, one.gap_ns / 1e9)
            for one in found
            if one is not None and one.last_tokens_ns == event.at_ns and one.gap_ns is not None
        }

    @property
    def num_open(self) -> int:
        return len(self._open)

    def get(self, id: RequestId) -> RequestTimeline | None:
        """Returns a copy of a timeline, open or ended."""

        def find() -> RequestTimeline | None:
            slowest = (one for slice in self._slowest.values() for one in slice if one.id == id)
            return None if (found := self.of(id) or next(slowest, None)) is None else replace(found)

        return self.between(find)

    def open(self, most: int | None = None) -> Sequence[RequestTimeline]:
        """Returns copies of open timelines, the longest open first, at most `most`."""
        return self.between(lambda: [replace(one) for one in islice(self._open.values(), most)])

    def ended(self, most: int | None = None) -> Sequence[RequestTimeline]:
        """Returns copies of ended timelines, the last that ended first, at most `most`."""
        return self.between(lambda: [replace(one) for one in islice(reversed(self._ended.values()), most)])

    def slowest(self, most: int, now_ns: int) -> Sequence[RequestTimeline]:
        """Returns copies of the timelines whose first token took longest, of those that ended in the last hour; the
        slowest first, at most `most` and NUM_SLOWEST."""

        def find() -> list[RequestTimeline]:
            since = now_ns // SLOWEST_SLICE_NS - SLOWEST_SLICES
            kept = [one for number, slice in self._slowest.items() if number > since for one in slice]
            return [replace(one) for one in nlargest(min(most, NUM_SLOWEST), kept, key=_seconds_to_first_token)]

        return self.between(find)

    def num_in_stage(self) -> dict[tuple[ModelId, Stage], int]:
        """Open requests by model and stage, including zeros for keys that were in use once."""
        return dict(self._counts)

    def num_waiting_for(self) -> dict[str, int]:
        """Open requests by what they wait for, including zeros for reasons that were in use once."""
        return dict(self._waits)

    def _queued(self, event: RequestQueued) -> None:
        if (replaced := self._open.pop(event.id, None)) is not None:
            self._forget(replaced)
        self._ended.pop(event.id, None)
        timeline = self._open[event.id] = RequestTimeline(event)
        self._count(timeline, 1)
        if len(self._open) > self._max_open:
            self._forget(self._open.popitem(last=False)[1])

    def _waiting(self, event: RequestWaits) -> None:
        if (timeline := self._in_stage(event.id, Stage.WAITING)) is not None:
            self._wait(timeline, event.reason)

    def _admitted(self, event: RequestAdmitted) -> None:
        if (timeline := self._open.get(event.id)) is not None:
            timeline.is_preempted = False
            if timeline.stage is Stage.WAITING:
                timeline.admitted_ns = event.at_ns
                self._wait(timeline, "")
                self._move(timeline, Stage.PREFILLING)

    def _preempted(self, event: RequestPreempted) -> None:
        if (timeline := self._open.get(event.id)) is not None:
            timeline.num_preemptions += 1
            timeline.is_preempted = True

    def _matched(self, event: PrefixMatched) -> None:
        timeline = self._open.get(event.id)
        if timeline is not None and timeline.matched is None:
            timeline.matched = event
            timeline.num_done = max(timeline.num_done, sum(event.reused.values()))

    def _restored(self, event: StateRestored) -> None:
        timeline = self._open.get(event.id)
        if timeline is not None and timeline.matched is None:  # the lookup reports it after this
            timeline.restored = event

    def _awaited(self, event: PrefixAwaited) -> None:
        if (timeline := self._open.get(event.id)) is not None:
            timeline.followed = event.owner

    def _images_matched(self, event: ImagesMatched) -> None:
        timeline = self._open.get(event.id)
        if timeline is not None and timeline.images is None:
            timeline.images = event

    def _image_seen(self, event: ImageSeen) -> None:
        if (timeline := self._open.get(event.id)) is not None:
            timeline.num_seen += 1
            timeline.tower_ns += event.at_ns - event.started_ns

    def _computed(self, event: PrefillChunkComputed) -> None:
        if (timeline := self._open.get(event.id)) is not None:
            timeline.num_done = min(max(timeline.num_done, event.end), timeline.queued.num_prompt_tokens)
            if not event.is_resumed:
                timeline.num_computed_tokens += event.end - event.start

    def _decode_started(self, event: DecodeStarted) -> None:
        if (timeline := self._in_stage(event.id, Stage.PREFILLING)) is not None:
            timeline.decode_started_ns = event.at_ns
            self._move(timeline, Stage.DECODING)

    def _first_token(self, event: FirstToken) -> None:
        timeline = self._in_stage(event.id, Stage.DECODING)
        if timeline is not None and timeline.first_token_ns is None:
            timeline.first_token_ns = event.at_ns

    def _received(self, event: TokensReceived) -> None:
        for id, num_tokens in event.counts:
            if (timeline := self._open.get(id)) is None or not num_tokens:
                continue
            last_ns, timeline.last_tokens_ns = timeline.last_tokens_ns, event.at_ns
            timeline.gap_ns = None if last_ns is None else (event.at_ns - last_ns) // num_tokens
            timeline.num_output += num_tokens

    def _end(self, event: RequestEnded) -> None:
        if (timeline := self._open.pop(event.id, None)) is None:
            return
        self._forget(timeline)
        timeline.ended, timeline.num_output, timeline.is_preempted = event, event.usage.completion_tokens, False
        self._ended[event.id] = timeline
        while len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)
        if timeline.first_token_ns is not None:
            self._note_slow(timeline, event.at_ns // SLOWEST_SLICE_NS)

    def _note_slow(self, timeline: RequestTimeline, number: int) -> None:
        if number not in self._slowest:
            newest = max(number, *self._slowest) if self._slowest else number
            self._slowest = {at: kept for at, kept in self._slowest.items() if at > newest - SLOWEST_SLICES}
        kept = [*self._slowest.get(number, ()), timeline]
        self._slowest[number] = nlargest(NUM_SLOWEST, kept, key=_seconds_to_first_token)

    def _explain(self, found: _Explained) -> None:
        if (timeline := self._open.get(found.id)) is not None:
            explanation = found.explanation
            timeline.explanation = explanation if self._keeps_tokens else explanation.without_tokens()
            timeline.owner = Owner.of("", found.request.cache_salt, found.request.client)

    def _in_stage(self, id: RequestId, stage: Stage) -> RequestTimeline | None:
        timeline = self._open.get(id)
        return timeline if timeline is not None and timeline.stage is stage else None

    def _wait(self, timeline: RequestTimeline, reason: str) -> None:
        for which, change in ((timeline.waits_for, -1), (reason, 1)):
            if which:
                self._waits[which] += change
        timeline.waits_for = reason
        if reason and reason not in timeline.waited_for:
            timeline.waited_for += (reason,)

    def _forget(self, timeline: RequestTimeline) -> None:
        self._count(timeline, -1)
        self._wait(timeline, "")

    def _move(self, timeline: RequestTimeline, stage: Stage) -> None:
        self._count(timeline, -1)
        timeline.stage = stage
        self._count(timeline, 1)

    def _count(self, timeline: RequestTimeline, change: int) -> None:
        self._counts[timeline.model, timeline.stage] += change


def _seconds_to_first_token(timeline: RequestTimeline) -> float:
    return timeline.time_to_first_token_s or 0.0
