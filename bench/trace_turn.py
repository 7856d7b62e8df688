"""The code that one chat turn runs through, on all threads of a server whose engine is a thread of this process.

    python -m bench.trace_turn [--model cairn-demo-hybrid] [--files] [--edges] [--json FILE]

A turn is a streamed chat completion whose beginning an earlier turn has left in the cache; the store is a new one on
disk. Counted from the request to what follows it (records are written behind it), as far as each of NUM_TURNS turns
does it, and without the watch, whose timer falls into any of them.

files      product files of which a function ran, and all of their lines
classes    product classes of which a method in their file ran (a dataclass's own `__init__` is in none)
edges      pairs of product files of which one called a function of the other, itself or through libraries; a coroutine
           is called by what awaits it
pairs      pairs of files that call each other

`--files`, `--edges`: lists them.
"""

import argparse
import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TypeAlias

from adapters.huggingface.model_folder import embedded_folder
from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from bench.common.event_log import EventLog
from bench.common.servers import cairn_in_process
from bench.http_client import user, words
from domain.ids import ModelId

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("domain", "application", "adapters", "interfaces")
WATCH = "application/services/text_side/supervision/engine_watch.py"
NUM_TURNS = 3
SETTLE_S = 2.0
"""The time in which what follows a turn ends."""

Edge: TypeAlias = tuple[str, str]


class Trace:
    """The calls between product files on every thread that is started after `installed`, while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.files, self.classes, self.edges = set[str](), set[str](), set[Edge]()
        self._names: dict[str, str | None] = {}  # product files by their paths; None: another file
        self._turns: list[tuple[set[str], set[str], set[Edge]]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def end_turn(self) -> None:
        """Ends the trace of one turn. Afterwards the sets hold what all turns have in common."""
        self.is_on = False
        self._turns.append((self.files, self.classes, self.edges))
        files, classes, edges = zip(*self._turns, strict=True)
        self.files, self.classes = set.intersection(*files), set.intersection(*classes)
        self.edges = set.intersection(*edges)

    def begin_turn(self) -> None:
        self.files, self.classes, self.edges = set[str](), set[str](), set[Edge]()
        self.is_on = True

    @property
    def pairs(self) -> list[Edge]:
        return sorted((a, b) for a, b in self.edges if a < b and (b, a) in self.edges)

    @property
    def num_lines(self) -> int:
        return sum(len((ROOT / name).read_text().splitlines()) for name in self.files)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not self.is_on:
            return
        code = frame.f_code
        if (called := self._name(code.co_filename)) is None:
            return
        callers = list(self._callers(frame))
        if WATCH in (called, *callers):
            return
        self.files.add(called)
        owner, _, _function = code.co_qualname.rpartition(".")
        if owner and not owner.endswith("<locals>"):
            self.classes.add(f"{called.removesuffix('.py').replace('/', '.')}.{owner}")
        if callers and callers[0] != called:
            self.edges.add((callers[0], called))

    def _callers(self, frame: FrameType) -> Iterator[str]:
        """Yields the product files of all calls that led to this one, the nearest first."""
        while (back := frame.f_back) is not None:
            frame = back
            if (name := self._name(frame.f_code.co_filename)) is not None:
                yield name

    def _name(self, path: str) -> str | None:
        if path not in self._names:
            name = os.path.relpath(path, ROOT)
            self._names[path] = name if name.startswith(tuple(f"{folder}/" for folder in PRODUCT)) else None
        return self._names[path]


def ask(url: str, model: str, messages: list[dict[str, str]]) -> str:
    """Returns the text of a streamed answer."""
    body = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0, "stream": True}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    text = ""
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["delta"].get("content") or ""
    return text


def traced_turns(model: str, folder: Path) -> Trace:
    settings = Settings(
        model=ModelSettings(default=str(embedded_folder(ModelId(model)) or model)),
        server=ServerSettings(port=0),
        store=StoreSettings(dir=str(folder)),
    )
    trace = Trace()
    with trace.installed(), cairn_in_process(settings, EventLog()) as url:
        messages = [user(words(1, 300))]
        for turn in range(NUM_TURNS + 1):
            if turn:
                trace.begin_turn()
            text = ask(url, settings.model.default, messages)
            time.sleep(SETTLE_S)
            if turn:
                trace.end_turn()
            messages += [{"role": "assistant", "content": text}, user(words(2 + turn, 40))]
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cairn-demo-hybrid")
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--edges", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        trace = traced_turns(options.model, Path(folder))
    figures = {
        "files": len(trace.files),
        "lines": trace.num_lines,
        "classes": len(trace.classes),
        "edges": len(trace.edges),
        "pairs": len(trace.pairs),
    }
    print(", ".join(f"{count} {name}" for name, count in figures.items()))
    if options.files:
        print("\n".join(sorted(trace.files)))
    print("\n".join(f"{a} <-> {b}" for a, b in trace.pairs))
    if options.edges:
        print("\n".join(f"{caller} -> {called}" for caller, called in sorted(trace.edges)))
    if options.json:
        found = {
            "files": sorted(trace.files),
            "lines": trace.num_lines,
            "classes": sorted(trace.classes),
            "edges": sorted(trace.edges),
            "pairs": trace.pairs,
        }
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
