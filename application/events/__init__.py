"""What happens in the engine, as typed facts. Times are monotonic nanoseconds from the Clock port.

Emitted to the EventSink; telemetry derives spans, metrics and logs from them, and nothing else knows of telemetry. A
file a family, and here all of them. Plain values without any text of a prompt or an answer. Requests are told of choice
by choice, by the choice's id.
"""

from typing import TypeAlias

from application.events.cache import (
    CacheMeasured,
    RecordsDropped,
    RecordsEvicted,
    RecordsOffered,
    RecordsPersisted,
    RecordsRead,
    StoreFault,
    StoreOpened,
)
from application.events.engine import FaultObserved, HttpRefused, ModelLoaded, ModelUnloaded, StepCompleted
from application.events.health import EngineRecovered, EngineRestarted, EngineStuck, ReadinessMeasured
from application.events.memory import MemoryMeasured, PressureRelieved
from application.events.prefix import PrefixAwaited, PrefixMatched, StateCaptured, StateRestored
from application.events.request import (
    DecodeStarted,
    FirstToken,
    Parsing,
    PrefillChunkComputed,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestQueued,
    RequestRefused,
    RequestWaits,
    TokensReceived,
)

Event: TypeAlias = (
    RequestQueued
    | RequestWaits
    | RequestAdmitted
    | RequestPreempted
    | PrefillChunkComputed
    | DecodeStarted
    | FirstToken
    | RequestEnded
    | RequestRefused
    | HttpRefused
    | StepCompleted
    | ModelLoaded
    | ModelUnloaded
    | FaultObserved
    | RecordsPersisted
    | RecordsDropped
    | RecordsEvicted
    | StoreFault
    | PrefixMatched
    | PrefixAwaited
    | StateRestored
    | StateCaptured
    | MemoryMeasured
    | PressureRelieved
    | TokensReceived
    | CacheMeasured
    | RecordsOffered
    | RecordsRead
    | EngineStuck
    | EngineRecovered
    | ReadinessMeasured
    | EngineRestarted
    | StoreOpened
)

__all__ = (
    "CacheMeasured",
    "DecodeStarted",
    "EngineRecovered",
    "EngineRestarted",
    "EngineStuck",
    "Event",
    "FaultObserved",
    "FirstToken",
    "HttpRefused",
    "MemoryMeasured",
    "ModelLoaded",
    "ModelUnloaded",
    "Parsing",
    "PrefillChunkComputed",
    "PrefixAwaited",
    "PrefixMatched",
    "PressureRelieved",
    "ReadinessMeasured",
    "RecordsDropped",
    "RecordsEvicted",
    "RecordsOffered",
    "RecordsPersisted",
    "RecordsRead",
    "RequestAdmitted",
    "RequestEnded",
    "RequestPreempted",
    "RequestQueued",
    "RequestRefused",
    "RequestWaits",
    "StateCaptured",
    "StateRestored",
    "StepCompleted",
    "StoreFault",
    "StoreOpened",
    "TokensReceived",
)
