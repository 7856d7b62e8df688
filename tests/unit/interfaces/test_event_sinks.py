"""The sinks of a server's events, by the system that it runs on."""

import sys

import pytest

from application.events import RequestQueued
from application.services.event_sinks import NullEvents
from domain.ids import ModelId, RequestId
from domain.request.request import RequestKind
from interfaces.composition.container import make_events
from tests.support.engines.fake_mac import FakeMac


@pytest.mark.parametrize(("system", "num_asserted"), [("darwin", 1), ("linux", 0)])
def test_a_mac_alone_is_kept_awake(monkeypatch: pytest.MonkeyPatch, system: str, num_asserted: int) -> None:
    calls, model = FakeMac(), ModelId("toy")
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("adapters.system.awake.MacCalls", lambda: calls)
    events = make_events(NullEvents(), NullEvents(), NullEvents(), NullEvents(), ())
    for id in map(RequestId, "ab"):
        events.emit(
            RequestQueued(
                id=id, model=model, requested_model=model, kind=RequestKind.CHAT, num_prompt_tokens=3, at_ns=0
            )
        )
    assert calls.num_asserted == num_asserted
