"""The output of the token side is delivered once, also when its receiver failed at first."""

from adapters.fake.environment import FakeClock
from application.events import FaultObserved
from application.ports.engine import StepBatch
from application.services.token_side.event_batcher import EventBatcher
from domain.ids import RequestId
from domain.request.stream import PrefillProgress

ID = RequestId("r")


class Receiver:
    """Raises at its next `num_failures` batches."""

    def __init__(self) -> None:
        self.num_failures = 0
        self.batches: list[StepBatch] = []

    def receive(self, batch: StepBatch) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise OSError("nobody is there")
        self.batches.append(batch)


def batcher_to(receiver: Receiver) -> EventBatcher:
    batcher = EventBatcher(FakeClock())
    batcher.connect(receiver.receive)
    return batcher


def test_a_batch_that_could_not_be_handed_over_comes_with_the_next_one() -> None:
    receiver = Receiver()
    batcher = batcher_to(receiver)
    batcher.send(ID, 0, PrefillProgress(1, 2))
    batcher.left_queue()
    receiver.num_failures = 1
    batcher.deliver()
    batcher.send(ID, 0, PrefillProgress(2, 2))
    batcher.deliver()
    (batch,) = receiver.batches
    assert [item for _, _, item in batch.items] == [PrefillProgress(1, 2), PrefillProgress(2, 2)]
    assert [type(event) for event in batch.events] == [FaultObserved]
    assert batch.num_left_queue == 1
