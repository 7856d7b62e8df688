"""Toy models that answer questions as a test wrote them down, and stand still or fail where it says so."""

import threading
from collections.abc import Mapping

from adapters.fake.options import FakeOptions
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from tests.support.patience import PATIENCE_S

ELSE = "A cairn is a stack of stones."


class ScriptedChat:
    """`answers`: by the words of the latest question. Give `options` to a service."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers
        self._at: int | None = None
        self._fails = False
        self._reached = threading.Event()
        self._opened = threading.Event()

    @property
    def options(self) -> FakeOptions:
        return FakeOptions(reply=self._reply, hook=self._before)

    def hold_at(self, num_tokens: int) -> None:
        """The next answer stands still when it has so many tokens, until `go_on`."""
        self._reached.clear()
        self._opened.clear()
        self._at = num_tokens

    def wait_until_held(self) -> None:
        assert self._reached.wait(PATIENCE_S), f"no answer came to {self._at} tokens"

    def go_on(self) -> None:
        self._at = None
        self._opened.set()

    def fail_at(self, num_tokens: int) -> None:
        """The next answer fails there."""
        self._fails, self._at = True, num_tokens

    def _reply(self, prompt_ids: tuple[int, ...]) -> bytes:
        prompt = bytes(id for id in prompt_ids if id < 256).decode()
        asked = {question: prompt.rfind(question) for question in self._answers if question in prompt}
        return self._answers[max(asked, key=asked.__getitem__)].encode() if asked else ELSE.encode()

    def _before(self, operation: str, _sequence: SequenceId | None, count: int) -> None:
        if operation != "decode" or count != self._at:
            return
        self._at = None
        if self._fails:
            self._fails = False
            raise ComputeFailed("made to fail")
        self._reached.set()
        assert self._opened.wait(PATIENCE_S), "the answer was never let go on"
