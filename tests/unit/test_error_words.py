"""A request that turns out too large for memory while it is computed: agents read it, though it tells no numbers."""

from typing import Any

import msgspec
import pytest

from application.ports.engine import EngineError
from domain.errors import PrefillMemoryExceeded
from interfaces.http.dialects import DIALECTS
from interfaces.http.errors import problem_of
from interfaces.http.responses.errors import response_error

LATE = EngineError.of(PrefillMemoryExceeded("memory does not hold it", context_length=5, limit_bytes=7)).to_error()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_every_dialect_says_that_the_prompt_is_too_long(path: str) -> None:
    assert isinstance(LATE, PrefillMemoryExceeded)
    problem = problem_of(LATE)
    assert problem.status == 400
    body: Any = msgspec.to_builtins(DIALECTS.of(path).error_body(problem))
    text = str(body)
    assert "prompt is too long" in text
    assert "memory does not hold it" in text
    assert "prefill_memory_exceeded" in text
    assert "'memory':" not in text
    assert " 0 " not in text


def test_codex_compacts_after_a_stream_that_failed_with_it() -> None:
    assert response_error(LATE).code == "context_length_exceeded"
