"""A trial of Cairn on a Mac: what only the machine itself can tell, as one table to send back (docs/mac.md).

    .venv/bin/python deploy/mac_trial.py --model ORG/NAME

It starts servers of the Cairn that this interpreter has, and mlx_lm.server, on 127.0.0.1. What is learnt is at once on
the disk (`--journal`): after a panic, run the same command again. A step that ended with the machine is then a row of
the table, and the steps after it follow. A failure of a step is its row as well.
"""

import argparse
import glob
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

STEPS = {
    "churn": "two streams of unique prompts, whose state is evicted, for {minutes:g} minutes",
    "long": "one prompt of {long:,} tokens, or what the model takes; leave the display on and move a window",
    "sleep": "an answer during which you send the Mac to sleep and wake it",
    "kill": "an engine killed in the middle of an answer, three times",
    "speed": "prefill and decode at {lengths} tokens, of Cairn and of mlx_lm.server, one after the other",
}
WARNING = """\
Kernel panics were reported for other servers under this load, and builds of Cairn from before November 2026 have their
cause: the machine may restart by itself. Close what you work on. Ctrl-C ends it and shows the table."""
LONG_TOKENS, LENGTHS, NUM_ANSWER, ROUNDS = 100_000, (2_048, 32_768), 128, 3
CHURN_TOKENS, DRY_TOKENS = 8_192, 1_024
START_S, ANSWER_S, WAKE_S, BEAT_S = 1_800.0, 3_600.0, 900.0, 5.0
ASLEEP_S = 10.0
"""The seconds by which the wall clock must be ahead of the awake one."""


@dataclass(frozen=True, slots=True)
class Row:
    step: str
    result: str
    detail: str


class Journal:
    """The file of what is known. Each line is on the disk when `add` returns; a panic leaves the lines before it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **facts: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> list[Row]:
        """Also of the steps that began and never ended: the machine, or this script, ended first."""
        rows: list[Row] = []
        begun: dict[str, float] = {}
        for line in self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []:
            try:
                facts = json.loads(line)
            except ValueError:
                continue  # the line that the panic cut short
            match facts:
                case {"begun": str(step)}:
                    begun[step] = 0.0
                case {"alive": str(step), "after_s": float(after_s)}:
                    begun[step] = after_s
                case {"ended": str(step)}:
                    begun.pop(step, None)
                case {"step": str(step), "result": str(result), "detail": str(detail)}:
                    rows.append(Row(step, result, detail))
        lost = [Row(step, "NO END", f"machine or script ended, alive {s:.0f} s before") for step, s in begun.items()]
        return rows + lost


def table(facts: dict[str, str], rows: Sequence[Row]) -> str:
    lines = ["| step | result | detail |", "|---|---|---|"]
    cells = [*((name, value, "") for name, value in facts.items()), *((r.step, r.result, r.detail) for r in rows)]
    lines += [f"| {' | '.join(' '.join(cell.split()).replace('|', '/')[:400] for cell in row)} |" for row in cells]
    return "\n".join(lines)


def output(*command: str) -> str:
    """The output of a command; empty where it fails, hangs or is not there."""
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return ""


def machine() -> dict[str, str]:
    names = ("hw.model", "machdep.cpu.brand_string", "hw.memsize", "hw.ncpu", "iogpu.wired_limit_mb")
    found = [f"{name}={value}" for name in names if (value := output("sysctl", "-n", name))]
    system = f"macOS {platform.mac_ver()[0]}" if sys.platform == "darwin" else platform.platform()
    versions = [f"Python {platform.python_version()}"]
    for name in ("cairn-mlx", "mlx", "mlx-metal", "mlx-lm"):
        with suppress(PackageNotFoundError):
            versions.append(f"{name} {version(name)}")
    return {"machine": ", ".join(found) or platform.machine(), "system": system, "versions": ", ".join(versions)}


def panics(since: float) -> list[str]:
    """The kernel's reports, which it writes after the restart."""
    found = glob.glob("/Library/Logs/DiagnosticReports/*.panic")
    return [path for path in found if os.path.getmtime(path) > since]


def wired_bytes(text: str) -> int | None:
    """Returns the wired bytes in the output of vm_stat; None where it has none."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = re.search(r"Pages wired down:\s+(\d+)", text)
    return int(size[1]) * int(pages[1]) if size and pages else None


def wired() -> str:
    found = wired_bytes(output("vm_stat"))
    return "unknown" if found is None else f"{found / 2**30:.1f} GiB"


def engine_pids(log: str) -> list[int]:
    """The engines of a server's log, in the order of their starts."""
    return [int(pid) for pid in re.findall(r"the engine runs in process (\d+)", log)]


def prompt_of(num_words: int, salt: object) -> str:
    """Unique from its first words on, so that nothing of it is reused. All words take about as many tokens."""
    return f"{salt} notes: " + " ".join(f"item {10 + n % 90}" for n in range(max(1, num_words // 2)))


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    num_prompt: int
    num_out: int
    first_s: float
    total_s: float

    @property
    def prefill_rate(self) -> float:
        return self.num_prompt / self.first_s

    @property
    def decode_rate(self) -> float | None:
        """None for too few tokens to tell."""
        return (self.num_out - 1) / (self.total_s - self.first_s) if self.num_out >= 16 else None


class Server:
    """A server as a process of its own."""

    def __init__(self, name: str, arguments: Sequence[str], ready: str, folder: Path) -> None:
        self.name, self._arguments, self._ready = name, arguments, ready
        self._log = folder / f"{name}.log"
        self.words_per_token = 0.5

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    @contextmanager
    def running(self) -> Iterator["Server"]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments, "--host", "127.0.0.1", "--port", port],
                env={**os.environ, "OTEL_SDK_DISABLED": "false"},  # metrics count the evictions
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            end = time.monotonic() + START_S
            while not self.is_ready():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{self.name} did not start: {self.log()[-300:]}")
                time.sleep(0.2)
            sample = self.ask(200, 1, "sample")
            self.words_per_token = 200 / sample.num_prompt
            yield self
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def is_ready(self) -> bool:
        try:
            self.get(self._ready, 10)
        except OSError:
            return False
        return True

    def get(self, path: str, timeout_s: float = 60) -> str:
        with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
            return str(answer.read().decode())

    def context(self) -> int:
        """The most tokens of the served model."""
        models = json.loads(self.get("/v1/models"))["data"]
        return next(model["cairn"]["context_length"] for model in models if model.get("cairn"))

    def ask(self, num_words: int, num_out: int, salt: object, seen: Callable[[], object] = lambda: None) -> Answer:
        """Returns the answer to a unique prompt. `seen`: called for each chunk. Raises OSError and RuntimeError."""
        body = {"prompt": prompt_of(num_words, salt), "max_tokens": num_out, "stream": True, "temperature": 0,
                "ignore_eos": True, "stream_options": {"include_usage": True}}  # fmt: skip
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), headers)
        begun = time.perf_counter()
        parts: list[str] = []
        times: list[float] = []
        usage: dict[str, Any] = {}
        try:
            answer = urllib.request.urlopen(request, timeout=ANSWER_S)
        except urllib.error.HTTPError as refusal:
            raise RuntimeError(f"{refusal}: {refusal.read(300).decode(errors='replace')}") from None
        with answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise RuntimeError(str(event["error"])[:300])
                usage = event.get("usage") or usage
                if event.get("choices"):
                    parts.append(event["choices"][0].get("text") or "")
                    times.append(time.perf_counter() - begun)
                    seen()
        if not usage or not times:
            raise RuntimeError("the answer has no end")
        return Answer("".join(parts), usage["prompt_tokens"], usage["completion_tokens"], times[0], times[-1])

    def ask_tokens(self, num_tokens: int, num_out: int, salt: object) -> Answer:
        return self.ask(int(num_tokens * self.words_per_token), num_out, salt)


@dataclass
class Trial:
    """`tell`: notes a row. `salt`: of this run, so that its prompts are those of no other."""

    options: argparse.Namespace
    folder: Path
    tell: Callable[[str, str], None]
    salt: int = field(default_factory=lambda: int(time.time()))

    def cairn(self, *more: str) -> Server:
        arguments = ["cairn", "serve", self.options.model, "--store", str(self.folder / "store"), *more]
        return Server("cairn", arguments, "/health/ready", self.folder)

    @property
    def rounds(self) -> int:
        return 1 if self.options.minutes < 1 else ROUNDS

    def tokens(self, wanted: int, most: int) -> int:
        return min(wanted, most, DRY_TOKENS if self.options.minutes < 1 else wanted)

    def churn(self) -> None:
        """The recipe of the reported panics: buffers come and go all the time, while two streams compute."""
        counts, failures = [0, 0], list[str]()
        with self.cairn("--hot-tier", "64MiB", "--store-quota", "256MiB", *self._tight()).running() as server:
            most = self.tokens(CHURN_TOKENS, server.context() // 2)
            end = time.monotonic() + self.options.minutes * 60

            def stream(index: int) -> None:
                while time.monotonic() < end and len(failures) < 10:
                    try:
                        server.ask_tokens(most, 16, f"{self.salt}-{index}-{counts[index]}")
                        counts[index] += 1
                    except (OSError, RuntimeError, ValueError) as error:
                        failures.append(f"{type(error).__name__}: {error}")

            threads = [threading.Thread(target=stream, args=(index,)) for index in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            metrics = server.get("/metrics") if server.is_ready() else ""
        evicted = sum(map(float, re.findall(r"^cairn_cache_evicted_total\{.*\} (\S+)$", metrics, re.MULTILINE)))
        done = f"{sum(counts)} prompts of {most} tokens, {evicted:.0f} evictions, wired {wired()}"
        self._tell_of(server, "; ".join([done, *failures[:2]]), is_good=not failures)

    def _tell_of(self, server: Server, detail: str, *, is_good: bool = True) -> None:
        lost = len(engine_pids(server.log())) - 1
        self.tell("FAILED" if lost or not is_good else "passed", f"{detail}; {lost} engines lost")

    def _tight(self) -> Sequence[str]:
        """The flags of a memory that holds the two streams and little of what they leave; none where it is unknown."""
        asked = ("plan", self.options.model, "--context", str(CHURN_TOKENS), "--batch", "2", "--json")
        needs = output(sys.executable, "-m", "cairn", *asked)
        return ("--memory", f"{int(json.loads(needs)['needed_bytes'] * 1.1) + (1 << 30)}") if needs else ()

    def long(self) -> None:
        with self.cairn().running() as server:
            answer = server.ask_tokens(self.tokens(LONG_TOKENS, server.context() * 9 // 10), 16, self.salt)
        rate = f"{answer.prefill_rate:.0f} a second"
        self._tell_of(server, f"{answer.num_prompt} tokens in {answer.first_s:.1f} s ({rate})")

    def sleep(self) -> None:
        if self.options.yes or not sys.stdin.isatty():
            self.tell("skipped", "nobody is here to send it to sleep")
            return
        with self.cairn().running() as server:
            print("Choose Sleep in the Apple menu now, wait a minute, and wake it.", flush=True)
            ahead, end = time.time() - time.monotonic(), time.monotonic() + WAKE_S
            num_asked = 0
            while (slept := time.time() - time.monotonic() - ahead) < ASLEEP_S and time.monotonic() < end:
                server.ask(100, 64, f"{self.salt} {num_asked}")  # there is always an answer on its way
                num_asked += 1
            if slept < ASLEEP_S:
                self.tell("skipped", f"it did not sleep within {WAKE_S:.0f} s")
                return
            answer = server.ask(100, 16, f"{self.salt} awake")
        self._tell_of(server, f"slept {slept:.0f} s; answer after it in {answer.total_s:.1f} s")

    def kill(self) -> None:
        before, same = wired(), 0
        with self.cairn().running() as server:
            num_out = min(NUM_ANSWER, server.context() // 4)
            for number in range(self.rounds):
                expected = server.ask(100, num_out, f"{self.salt} {number}")
                seen = iter(range(num_out))

                def kill_once(seen: Iterator[int] = seen) -> None:
                    if next(seen, 0) == 4:
                        os.kill(engine_pids(server.log())[-1], signal.SIGKILL)

                again = server.ask(100, num_out, f"{self.salt} {number}", kill_once)
                same += again.text == expected.text
            server.ask(100, 1, f"{self.salt} after")  # the last kill may have come after all was sent
            num_killed = len(engine_pids(server.log())) - 1
        done = f"{num_killed} engines killed, {same} of {self.rounds} texts as undisturbed (rounding may change them)"
        self.tell("passed" if num_killed == self.rounds else "FAILED", f"{done}; wired {before}, then {wired()}")

    def speed(self) -> None:
        doctor = output(sys.executable, "-m", "cairn", "doctor", self.options.model)
        found = re.search(r"^. model +\S+ in (/.+)$", doctor, re.MULTILINE)
        path = found[1] if found else self.options.model
        theirs = ["mlx_lm", "server", "--model", path, "--log-level", "WARNING"]
        with self.cairn("--store", "off").running() as server:
            lengths = sorted({self.tokens(length, server.context() * 3 // 4) for length in LENGTHS})
            self._speed(server, lengths)
        with Server("mlx_lm", theirs, "/health", self.folder).running() as server:
            self._speed(server, lengths)

    def _speed(self, server: Server, lengths: Sequence[int]) -> None:
        server.ask(200, 16, "warm")
        for length in lengths:
            found = [server.ask_tokens(length, NUM_ANSWER, f"{self.salt} {length} {n}") for n in range(self.rounds)]
            decode = [rate for answer in found if (rate := answer.decode_rate)]
            self.tell(
                f"{server.name} at {found[0].num_prompt}",
                f"prefill {statistics.median(answer.prefill_rate for answer in found):.0f} tokens a second, "
                f"decode {f'{statistics.median(decode):.1f}' if decode else 'unknown'}; rounds: {len(found)}",
            )


def run_step(name: str, journal: Journal, trial: Trial) -> None:
    """Never raises: its failure is a row. Notes every few seconds that the machine is alive."""
    journal.add(begun=name)
    begun, done = time.monotonic(), threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_S):
            journal.add(alive=name, after_s=time.monotonic() - begun)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    trial.tell = lambda result, detail: journal.add(step=name, result=result, detail=detail)
    try:
        getattr(trial, name)()
    except KeyboardInterrupt:
        trial.tell("ended", "by Ctrl-C")
        raise
    except Exception as error:
        trial.tell("FAILED", f"{type(error).__name__}: {error}")
    finally:
        done.set()
        thread.join()
        journal.add(ended=name)


def plan(names: Sequence[str], minutes: float) -> str:
    lengths = " and ".join(f"{length:,}" for length in LENGTHS)
    steps = {name: STEPS[name].format(minutes=minutes, long=LONG_TOKENS, lengths=lengths) for name in names}
    return "\n".join(["This trial does:", *(f"  {name:<6} {what}" for name, what in steps.items()), "", WARNING])


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="cairn-demo", help="a name that `cairn serve` takes")
    parser.add_argument("--minutes", type=float, default=20.0, help="of the step `churn`; below 1: a dry run")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP", help=" ".join(STEPS))
    parser.add_argument("--journal", type=Path, default=Path("mac-trial.jsonl"), help="what a panic leaves")
    parser.add_argument("--yes", action="store_true", help="ask nothing, and skip what needs a person")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # its servers end with it
    journal = Journal(options.journal)
    known = {row.step for row in journal.rows()}
    names = [name for name in options.steps if name not in known]
    print(plan(names, options.minutes), flush=True)
    if not options.yes and input("Type yes to begin: ").strip() != "yes":
        return
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="cairn-trial-") as folder:
        for name in names:
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            run_step(name, journal, Trial(options, Path(folder), lambda *_: None))
    facts = {**machine(), "model": options.model}
    rows = [*journal.rows(), *(Row("panic", "FAILED", path) for path in panics(time.time() - 86_400))]
    print(
        f"\n{table(facts, rows)}\n\nSend this table back, and the panic report if there is one: docs/mac.md says where."
    )


if __name__ == "__main__":
    main()
