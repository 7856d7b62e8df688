"""The wake-ups of an idle server: voluntary context switches a second of both of its processes, by thread.

    python -m bench.idle [--seconds 60] [--settle 45] [--json FILE]

Twice: after the start with the embedded model, and after one request. `--settle`: seconds of rest before each count, in
which what follows work ends. The status says whether each is at most 2 a second. Where there is a /proc.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common.servers import ServerProcess
from bench.http_client import measure
from bench.serve import completion, text_of

MOST = 2.0


def switches(pids: Sequence[int]) -> Counter[str]:
    """Voluntary context switches so far, by the process's place among `pids` and the thread."""
    found: Counter[str] = Counter()
    for place, pid in enumerate(pids):
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            found[f"process {place}, {fields['Name']} {task.name}"] = int(fields["voluntary_ctxt_switches"])
    return found


def wake_ups(pids: Sequence[int], seconds: float) -> dict[str, float]:
    """Wake-ups a second over the next `seconds`, most first, of the threads that had any."""
    before, started_s = switches(pids), time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - started_s
    return {thread: round(num / took_s, 3) for thread, num in (switches(pids) - before).most_common()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=45.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        home = {"XDG_CACHE_HOME": folder}
        arguments = ["interfaces.cli", "serve", "--store", f"{folder}/store"]
        with ServerProcess(arguments, "/health/ready", Path(folder) / "log", environment=home) as server:
            for when in ("after the start", "after a request"):
                if results:
                    measure(server.url, [completion(text_of(6), 32, "cairn-demo")])
                time.sleep(asked.settle)
                results[when] = wake_ups(server.pids(), asked.seconds)
    for when, threads in results.items():
        print(f"{when}: {sum(threads.values()):.1f} wake-ups a second")
        for thread, rate in threads.items():
            print(f"  {rate:6.2f}  {thread}")
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2))
    return int(any(sum(threads.values()) > MOST for threads in results.values()))


if __name__ == "__main__":
    sys.exit(main())
