"""A GrammarChecker that tries each grammar in a separate process (`trial`) and caches the verdict.

A new grammar takes two hundred milliseconds; an agent sends the same one with every turn.
"""

import json
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from threading import Lock

from adapters.llguidance.library import LIMITS, rendered
from domain.errors import InvalidRequest, ServerUnavailable
from domain.printable import printable
from domain.request.grammar import Grammar

TIMEOUT_S = 600.0
"""The limit of a trial that neither ends nor computes. A grammar's own limit is two seconds of processor time, which
may take minutes on a busy machine: its request waits, as it does for a processor elsewhere."""

MAX_REMEMBERED = 1_024
_MAX_MESSAGE_CHARS = 400
_TRIAL = Path(__file__).with_name("trial.py")
_TOO_COSTLY = "compiling it takes too much time or memory; simplify it"


class LlguidanceChecker:
    """See the port. Verdicts are kept by digest and salt; the least recently used is evicted first."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._verdicts: OrderedDict[tuple[bytes, str], str] = OrderedDict()

    def check(
        self, grammar: Grammar, vocab_size: int, special_tokens: Mapping[str, int], param: str, salt: str = ""
    ) -> None:
        asked = json.dumps(
            {
                "grammar": rendered(grammar),
                "limits": dict(LIMITS),
                "vocab_size": vocab_size,
                "special": {name: id for name, id in special_tokens.items() if id < vocab_size},
            }
        ).encode()
        key = sha256(asked).digest(), salt
        with self._lock:
            verdict = self._verdicts.get(key)
            if verdict is not None:
                self._verdicts.move_to_end(key)
        if verdict is None:
            verdict = self._verdict(asked)
            with self._lock:
                self._verdicts[key] = verdict
                if len(self._verdicts) > MAX_REMEMBERED:
                    self._verdicts.popitem(last=False)
        if verdict:
            raise InvalidRequest(f"{param} cannot be enforced: {verdict}", param=param)

    def _verdict(self, asked: bytes) -> str:
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(_TRIAL)], input=asked, capture_output=True, timeout=self._timeout_s
            )
        except subprocess.TimeoutExpired:
            raise ServerUnavailable(f"the grammar could not be checked within {self._timeout_s:g} s; retry") from None
        except OSError as error:
            raise ServerUnavailable(f"the grammar could not be checked: {error}") from error
        if done.returncode in _ENDED_BY_ITS_COST or b"MemoryError" in done.stderr:
            return _TOO_COSTLY
        if done.returncode:
            reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ServerUnavailable(f"the grammar could not be checked: {printable(reason, _MAX_MESSAGE_CHARS)}")
        return printable(json.loads(done.stdout)["error"].replace("<non-verbose/>", "").strip(), _MAX_MESSAGE_CHARS)


_ENDED_BY_ITS_COST = frozenset(
    -number for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV, signal.SIGXCPU, signal.SIGKILL)
)
