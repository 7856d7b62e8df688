"""Where the device shares the host's memory: what readers upload there the device joins, and answers stay the same."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.mlx.state import restore as state_restore
from adapters.mlx.state.payload import DevicePayload, upload
from application.events import FaultObserved
from domain.prefix.record import StatePayload
from tests.support.http.replay.replay import Message, Replay, caching_server, opening, question
from tests.support.mlx.small_demos import SMALL_HYBRID


def turns() -> list[list[Message]]:
    first = [*opening(60), question(1)]
    return [first, [*first, {"role": "assistant", "content": "Go on."}, question(2)]]


@pytest.mark.slow
def test_a_conversation_goes_on_from_landed_state(demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with caching_server(tmp_path / "store", model_dir=demos) as server:
        first = Replay(server.client, SMALL_HYBRID, max_tokens=8)
        answers = [first.chat(messages) for messages in turns()]
    uploaded: list[StatePayload] = []

    def upload_and_note(payloads: Sequence[StatePayload]) -> Sequence[StatePayload]:
        found = upload(payloads)
        uploaded.extend(found)
        return found

    monkeypatch.setattr(state_restore, "on_cpu", lambda: False)
    with caching_server(tmp_path / "store", model_dir=demos, upload=upload_and_note) as server:
        again = Replay(server.client, SMALL_HYBRID, max_tokens=8)
        repeated = [again.chat(messages) for messages in reversed(turns())]
        assert not server.events.of(FaultObserved)
    assert [answer.output_ids for answer in reversed(repeated)] == [answer.output_ids for answer in answers]
    assert repeated[0].num_computed == 1
    assert uploaded
    assert all(isinstance(payload, DevicePayload) for payload in uploaded)
