"""What could not be loaded a short while ago: for these very files, for a while, and for so many."""

from dataclasses import replace

from application.services.text_side.models.load_failures import MAX_REMEMBERED, REMEMBERED_S, LoadFailures
from domain.ids import ModelId
from domain.models.model_card import ModelSource

SOURCE = ModelSource(ModelId("m"), "/models/m", created_s=1_700_000_000)


def test_a_failure_is_remembered_for_a_while_and_says_so() -> None:
    failures = LoadFailures()
    failures.note(SOURCE, "it does not fit", 100.0)
    assert failures.recall(SOURCE, 112.0) == (
        "it does not fit (found 12 s ago; it is tried again 300 s after that, or when its files change)"
    )
    assert failures.recall(SOURCE, 100.0 + REMEMBERED_S) is None


def test_changed_files_are_tried() -> None:
    for changed in (replace(SOURCE, created_s=1_700_000_001), replace(SOURCE, path="/elsewhere/m")):
        failures = LoadFailures()
        failures.note(SOURCE, "broken", 0.0)
        assert failures.recall(changed, 1.0) is None
        assert failures.recall(SOURCE, 1.0) is None, "and what was known of the others is forgotten"


def test_a_success_is_no_failure_any_more() -> None:
    failures = LoadFailures()
    failures.note(SOURCE, "broken", 0.0)
    failures.forget(SOURCE.id)
    assert failures.recall(SOURCE, 1.0) is None


def test_the_oldest_is_forgotten_first() -> None:
    failures = LoadFailures()
    sources = [replace(SOURCE, id=ModelId(f"m{number}")) for number in range(MAX_REMEMBERED + 1)]
    for source in sources:
        failures.note(source, "broken", 0.0)
    assert [failures.recall(source, 1.0) is None for source in sources[:2]] == [True, False]
