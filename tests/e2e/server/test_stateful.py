"""Requests that follow from answers, as the links of the served OpenAPI document say: stored responses read, listed and
deleted, tokens made and turned back. Drawn by schemathesis.

No 5xx but 503, what was deleted stays away, and every route that is linked to was reached with something real. What is
drawn next depends on ids that the server makes up, so no number of scenarios is sure to reach them all: rounds are
drawn until one has.
"""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import Case, Response

from adapters.fake.options import FakeOptions
from tests.support.http.servers.fake_service import DEFAULT_MODEL, fake_service

pytestmark = pytest.mark.slow

LINKED = {"createResponse", "getResponse", "listInputItems", "deleteResponse", "tokenize", "detokenize"}
NUM_SCENARIOS, NUM_STEPS = 8, 8
MAX_ROUNDS = 20
"""One round in four misses a route."""

VALID: dict[str, dict[str, Any]] = {
    "createResponse": {"model": DEFAULT_MODEL, "input": "hi", "max_output_tokens": 4},
    "tokenize": {"model": DEFAULT_MODEL, "prompt": "some text"},
}
"""Bodies that begin something; half of the time one that was drawn is sent instead, which seldom is as good."""

SETTINGS = settings(
    max_examples=NUM_SCENARIOS,
    stateful_step_count=NUM_STEPS,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def is_covered(statuses: Counter[tuple[str, int]]) -> bool:
    """Whether every linked route answered with something real, and something that was not there was asked for."""
    answered = {operation for operation, status in statuses if status == 200}
    return answered == LINKED and statuses["getResponse", 404] + statuses["deleteResponse", 404] > 0


def test_what_follows_from_answers() -> None:
    statuses: Counter[tuple[str, int]] = Counter()
    with fake_service(FakeOptions(context_length=300)) as service:
        document = service.client.get("/schema/openapi.json").json()
        document["paths"] = {
            path: {method: told for method, told in methods.items() if told["operationId"] in LINKED}
            for path, methods in document["paths"].items()
        }
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=service.base_url)
        machine: Any = schema.as_state_machine()

        class FollowUps(machine):  # type: ignore[misc]
            def before_call(self, case: Case) -> None:
                valid = VALID.get(case.operation.definition.raw["operationId"])
                if valid is not None and len(repr(case.body)) % 2:
                    case.body = valid

            def validate_response(self, response: Response, case: Case, *_: Any, **__: Any) -> None:
                operation = case.operation.definition.raw["operationId"]
                statuses[operation, response.status_code] += 1
                assert response.status_code < 500 or response.status_code == 503, response.text
                if response.status_code >= 400:
                    assert "error" in response.json()

        for round_number in range(MAX_ROUNDS):
            seed(round_number)(FollowUps)
            run_state_machine_as_test(FollowUps, settings=SETTINGS)
            if is_covered(statuses):
                break
        service.wait_until_idle()
        assert not service.events.of("FaultObserved")
    assert is_covered(statuses), statuses
