"""How long to wait before what ended is started again."""

from domain.restart_pace import CALM_S, MAX_DELAY_S, RestartPace


def test_the_first_time_at_once_and_then_ever_longer() -> None:
    pace = RestartPace()
    assert [pace.next_delay_s(1.0) for _ in range(8)] == [0, 1, 2, 4, 8, 16, MAX_DELAY_S, MAX_DELAY_S]


def test_a_long_life_begins_the_count_anew() -> None:
    pace = RestartPace()
    for _ in range(5):
        pace.next_delay_s(CALM_S - 1)
    assert [pace.next_delay_s(CALM_S), pace.next_delay_s(0.5)] == [0, 1]
