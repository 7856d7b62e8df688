"""Commands of other programs as scripts in a folder: each notes its arguments and variables and gives fixed answers."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    arguments: list[str]
    environment: dict[str, str]


class FakeCommands:
    """`folder`: for the PATH. `calls`: of all of them, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "fake-bin"
        self._log = folder / "fake-calls.jsonl"
        self.folder.mkdir()

    def add(self, name: str, answers: Mapping[str, str] | None = None, failing: str = "", status: int = 1) -> None:
        """`answers`: the output by a word among the arguments. `failing`: a word that makes it fail with this
        status, and say so."""
        script = self.folder / name
        body = {"answers": dict(answers or {}), "failing": failing, "status": status, "log": str(self._log)}
        script.write_text(f"""#!{sys.executable}
import json, os, sys
how = json.loads({json.dumps(json.dumps(body))})
words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
with open(how["log"], "a") as log:
    log.write(json.dumps([words, dict(os.environ)]) + "\\n")
if how["failing"] and how["failing"] in words:
    sys.stderr.write(f"{{how['failing']}} is refused\\n")
    sys.exit(how["status"])
for word in words:
    print(how["answers"].get(word, ""), end="")
""")
        script.chmod(0o755)

    def calls(self) -> list[Call]:
        lines: list[Any] = (
            [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []
        )
        return [Call(words, variables) for words, variables in lines]

    def words(self) -> list[str]:
        """Each call as one line."""
        return [" ".join(call.arguments) for call in self.calls()]
