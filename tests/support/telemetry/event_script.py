"""The events of requests, written by hand at chosen times."""

from dataclasses import replace

from application.events import (
    CacheMeasured,
    DecodeStarted,
    Event,
    FirstToken,
    ImageSeen,
    ImagesMatched,
    KvEventsSent,
    Parsing,
    PrefillChunkComputed,
    ReadinessMeasured,
    RecordsPersisted,
    RequestAdmitted,
    RequestEnded,
    RequestQueued,
    RequestWaits,
    SharedStoreUsed,
    TierReading,
    TokensReceived,
)
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, Role
from domain.request.request import ChatPrompt, Prompt, RequestKind, TextPrompt, Usage
from domain.request.sampling import SamplingParams, StopRules

START_NS = 1_000_000_000
"""When every scripted request is queued, on FakeClock's monotonic clock."""

CHAT = ChatPrompt((ChatMessage(Role.USER, "hello"),))


def at(seconds: float) -> int:
    """Monotonic nanoseconds, `seconds` after the request was queued."""
    return START_NS + round(seconds * 1e9)


class Script:
    """The events of one request; prompt of 1,025 tokens, computed in two chunks."""

    def __init__(
        self,
        id: str = "chatcmpl-1",
        prompt: Prompt = CHAT,
        sampling: SamplingParams | None = None,
        stop: StopRules | None = None,
        carrier: dict[str, str] | None = None,
        choice: int = 0,
    ) -> None:
        self.id = RequestId(id)
        stop = stop or StopRules()
        self._queued = RequestQueued(
            id=self.id,
            model=ModelId("demo"),
            requested_model=ModelId("alias"),
            kind=RequestKind.CHAT if isinstance(prompt, ChatPrompt) else RequestKind.TEXT,
            num_prompt_tokens=1025,
            at_ns=at(0),
            sampling=sampling or SamplingParams(),
            max_tokens=stop.max_tokens,
            num_stop_strings=len(stop.stop),
            trace_carrier=carrier or {},
            choice=choice,
        )

    def queued(self) -> RequestQueued:
        return self._queued

    def waits(self, reason: str = "memory", seconds: float = 0.5) -> RequestWaits:
        return RequestWaits(self.id, reason, at(seconds))

    def admitted(self, seconds: float = 1.0) -> RequestAdmitted:
        return RequestAdmitted(self.id, at(seconds))

    def first_chunk(self) -> PrefillChunkComputed:
        return PrefillChunkComputed(id=self.id, start=0, end=512, started_ns=at(1.0), at_ns=at(1.5))

    def second_chunk(self) -> PrefillChunkComputed:
        return PrefillChunkComputed(id=self.id, start=512, end=1025, started_ns=at(1.5), at_ns=at(2.0))

    def images_matched(self) -> ImagesMatched:
        return ImagesMatched(self.id, 2, 134, 67, at(1.0))

    def image_seen(self) -> ImageSeen:
        return ImageSeen(id=self.id, num_tokens=67, size_bytes=68_608, started_ns=at(1.0), at_ns=at(1.125))

    def decode_started(self) -> DecodeStarted:
        return DecodeStarted(self.id, at(2.0))

    def first_token(self) -> FirstToken:
        return FirstToken(self.id, at(2.25))

    def ended(self, reason: str = "stop", seconds: float = 4.25, num_output: int = 9) -> RequestEnded:
        return RequestEnded(id=self.id, reason=reason, usage=Usage(1025, num_output), at_ns=at(seconds))

    def failed(self, seconds: float, num_output: int = 0) -> RequestEnded:
        usage = Usage(1025, num_output)
        return RequestEnded(
            id=self.id,
            reason="error",
            usage=usage,
            at_ns=at(seconds),
            error_code="compute_failed",
            error_message="the matrix\nis singular",
        )

    def prefilled(self) -> list[Event]:
        return [self.queued(), self.admitted(), self.first_chunk(), self.second_chunk(), self.decode_started()]

    def finished(self) -> list[Event]:
        return [*self.prefilled(), self.first_token(), self.ended()]

    @staticmethod
    def parsed(ended: RequestEnded, *, has_failed: bool = False) -> RequestEnded:
        """The end of an answer of which there was something to parse."""
        parsing = Parsing(
            family="json",
            num_calls=2,
            problems=("unknown_tool", "unknown_tool"),
            busy_ns=3_000_000,
            started_ns=at(2.25),
            ended_ns=at(4.0),
            has_failed=has_failed,
            repeated_tokens=7,
        )
        return replace(ended, parsing=parsing)

    def received(self, seconds: float, num_tokens: int = 1) -> TokensReceived:
        return TokensReceived(((self.id, num_tokens),), at(seconds))

    def answered(self) -> list[Event]:
        """As `finished`, with the events of the text side in between."""
        reported = [self.first_token(), self.received(2.25), self.received(2.75, 2)]
        return [*self.prefilled(), *reported, self.parsed(self.ended(), has_failed=True)]


TIERS = TierReading("hot", 600, 1000, 3), TierReading("store", 4000, 9000, 1)

OF_THE_TIERS: list[Event] = [
    ReadinessMeasured(True, at(0)),
    CacheMeasured(TIERS, at(0), shared_available=1),
    RecordsPersisted(num_records=4, raw_bytes=1_000_000, started_ns=at(0), at_ns=at(0.01), offered_ns=at(-0.5)),
    SharedStoreUsed("read", "read", 3, 500_000, at(0), at(0.01)),
    KvEventsSent("sent", 2, at(0.02)),
]


def text_script() -> Script:
    """A completion of raw text."""
    return Script("cmpl-1", TextPrompt("once upon a time"))
