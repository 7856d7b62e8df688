"""The limit of open files, raised as far as a system allows that refuses what it reports."""

import resource

import pytest

from adapters.system.machine import raise_open_files


class FakeLimits:
    """Limits of open files, in a system that refuses a soft one above `most`. -1: no limit."""

    def __init__(self, soft: int, hard: int, most: int) -> None:
        self.soft, self.hard, self.most = soft, hard, most

    def get(self, _kind: int) -> tuple[int, int]:
        return self.soft, self.hard

    def set(self, _kind: int, limits: tuple[int, int]) -> None:
        if limits[0] > self.most:
            raise ValueError("current limit exceeds maximum limit")
        self.soft, self.hard = limits


@pytest.mark.parametrize(
    ("soft", "hard", "most", "raised"),
    [
        (256, -1, 1 << 20, 65_536),
        (256, -1, 61_440, 32_768),
        (256, -1, 10_240, 10_240),
        (256, -1, 5_000, 4_096),
        (256, 3_000, 1 << 20, 3_000),
        (1_024, 20_000, 1 << 20, 20_000),
        (256, 20_000, 10_240, 10_240),
        (20_000, -1, 10_240, 20_000),
        (100_000, 200_000, 1 << 20, 100_000),
        (-1, -1, 10_240, -1),
    ],
)
def test_the_limit_is_raised_as_far_as_the_system_allows_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soft: int, hard: int, most: int, raised: int
):
    limits = FakeLimits(soft, hard, most)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    raise_open_files()
    assert (limits.soft, limits.hard, caplog.messages) == (raised, hard, [])


def test_a_system_that_refuses_the_last_try_is_told_about(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    limits = FakeLimits(256, -1, 256)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    raise_open_files()
    assert limits.soft == 256
    assert caplog.messages == ["the limit of open files stays at 256, because the system refuses 4096"]
