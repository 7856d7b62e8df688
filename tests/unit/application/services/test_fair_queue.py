"""Owners of a queue take turns by cost, and nothing is lost or waits for ever."""

from hypothesis import given
from hypothesis import strategies as st

from application.services.fair_queue import FairQueue

ITEMS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=40)


def _popped(queue: FairQueue[str]) -> str:
    return "".join(queue.pop() for _ in range(len(queue)))


def test_owners_take_turns_by_cost() -> None:
    queue = FairQueue[str]()
    for _ in range(2):
        queue.push("a", "a", 3)
    for _ in range(6):
        queue.push("b", "b", 1)
    assert _popped(queue) == "abbbabbb"


def test_an_owner_that_comes_back_has_not_been_forgotten() -> None:
    queue = FairQueue[str]()
    queue.push("a", "a", 3)
    for _ in range(4):
        queue.push("b", "b", 1)
    assert queue.pop() == "a"
    queue.push("a", "a", 3)
    assert _popped(queue) == "bbbab"


def test_an_owner_that_waited_for_nothing_gains_nothing() -> None:
    queue = FairQueue[str]()
    for _ in range(8):
        queue.push("a", "a")
    assert [queue.pop() for _ in range(4)] == ["a"] * 4
    for _ in range(2):
        queue.push("b", "b")
    assert _popped(queue) == "babaaa"


def test_short_items_of_an_owner_pass_a_long_one_up_to_its_cost() -> None:
    queue = FairQueue[str]()
    queue.push("L", cost=3)
    found = ""
    for _ in range(5):
        queue.push("s")
        found += queue.pop()
    assert found == "ssLss"


@given(ITEMS, st.integers(1, 5))
def test_nothing_is_lost_and_no_owner_gets_more_than_its_share(items: list[tuple[str, int]], every: int) -> None:
    queue, found, waiting = FairQueue[tuple[str, int]](), list[tuple[str, int]](), {name: 0 for name in "abc"}
    served = dict.fromkeys("abc", 0)
    for at, (owner, cost) in enumerate(items):
        queue.push((owner, cost), owner, cost)
        waiting[owner] += 1
        if at % every == 0:
            found.append(queue.pop())
            waiting[found[-1][0]] -= 1
    begun = {name for name, count in waiting.items() if count}
    while queue:
        if begun == {name for name, count in waiting.items() if count}:  # as long as all of them wait
            spread = [served[name] for name in begun]
            assert max(spread) - min(spread) <= 2 * 50
        owner, cost = queue.pop()
        found.append((owner, cost))
        served[owner] += cost
        waiting[owner] -= 1
    assert sorted(found) == sorted(items)
