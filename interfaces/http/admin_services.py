"""What the admin's routes need besides what all routes have."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from application.ports.shown_setting import ShownSetting
from application.services.cache_readings import CacheReadings
from application.services.live_figures import LiveFigures
from application.use_cases.watch_requests import WatchRequests


@dataclass(frozen=True, slots=True)
class AdminServices:
    """`settings`: what is set, read when it is asked for."""

    figures: LiveFigures
    requests: WatchRequests
    readings: CacheReadings
    settings: Callable[[], Sequence[ShownSetting]]


__all__ = ("AdminServices",)
