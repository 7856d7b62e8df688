"""The thread that syncs a store whose commits are not synced."""

from threading import Event

from adapters.lmdb.background_sync import BackgroundSync
from tests.support.fake_service import wait_until
from tests.support.patience import PATIENCE_S


def test_it_syncs_at_once_and_again_until_it_is_closed() -> None:
    synced: list[int] = []
    background = BackgroundSync(lambda: synced.append(1), every_s=0.001)
    wait_until(lambda: len(synced) >= 3, "the third sync")
    background.close()
    count = len(synced)
    assert not background._thread.is_alive()
    assert len(synced) == count


def test_closing_waits_for_a_sync_that_is_under_way() -> None:
    began, may_end, ended = Event(), Event(), Event()

    def sync() -> None:
        began.set()
        assert may_end.wait(PATIENCE_S)
        ended.set()

    background = BackgroundSync(sync)
    assert began.wait(PATIENCE_S)
    may_end.set()
    background.close()
    assert ended.is_set()
