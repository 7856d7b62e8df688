"""The bytes of the block store and the durations of its puts, in one run.

    python -m bench.store [CASE ...] [--dir DIR] [--puts 2000]

Cases: density, churn.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from adapters.system.blas import load_blas
from tests.support.engines.finish_load import finish_load

load_blas()

import numpy as np  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder  # noqa: E402
from adapters.mlx.loading.assembly import assemble  # noqa: E402
from adapters.mlx.loading.network import load_folder  # noqa: E402
from adapters.mlx.loading.weights_digest import Digests  # noqa: E402
from bench.store.support import BLOCK, Facts, open_store, put, record, timed  # noqa: E402
from domain.ids import GroupIndex, SequenceId  # noqa: E402
from domain.models.model_card import LoadOptions  # noqa: E402
from domain.prefix.record import GroupPayloads, HostPayload, TensorSpec  # noqa: E402
from interfaces.composition.service import SWITCH_INTERVAL_S  # noqa: E402


def density(folder: Path, options: argparse.Namespace) -> Facts:
    """Stored bytes of real bfloat16 state of the embedded models."""
    facts: Facts = {}
    text = "".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
    for id in EMBEDDED_IDS:
        source = embedded_folder(id)
        assert source is not None
        tokens = Tokenizer.from_file(str(source / "tokenizer.json")).encode(text).ids[: 6 * BLOCK]
        network, model_facts = finish_load(load_folder(source, LoadOptions("bfloat16"), Digests(b"")))
        model = finish_load(assemble(network, id, model_facts))
        model.open(SequenceId(1))
        groups: list[GroupPayloads] = []
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            model.prefill(SequenceId(1), tokens[start : start + BLOCK])
            groups += model.capture_blocks(SequenceId(1), [(start, start + BLOCK)])
        store = open_store(folder / id, 1 << 30)
        records = [record(number, one) for number, one in enumerate(groups)]
        put(store, records)
        raw = sum(payload.size_bytes for one in groups for payload in one.values())
        space = store.usage().namespaces[0]
        facts[id] = {
            "raw_bytes_a_token": raw / len(records) / BLOCK,
            "stored_bytes_a_token": space.stored_bytes / len(records) / BLOCK,
            "stored_over_raw": space.stored_bytes / raw,
            "goal": 0.69,
        }
        store.close()
        model.release()
    return facts


def churn(folder: Path, options: argparse.Namespace) -> Facts:
    """Put latency at a full quota, sizes of 0.1 to 8 MiB. `growth`: the last tenth against the first after filling."""
    source = memoryview(np.random.default_rng(1).bytes(9 << 20))
    random = np.random.default_rng(2)
    quota_bytes = 1 << 30
    store = open_store(folder / "store", quota_bytes, compress=False)
    latencies: list[float] = []
    by_size: dict[int, list[float]] = {}
    cpu_by_size: dict[int, list[float]] = {}
    number = 0
    while store.usage().evicted == 0 or len(latencies) < options.puts:
        size = int(2 ** random.uniform(np.log2(100 << 10), np.log2(8 << 20)))
        payload = HostPayload((TensorSpec("uint8", (size,)),), (source[number % 4096 : number % 4096 + size],))
        one = record(number, {GroupIndex(0): payload})
        # CPU time of the putting thread, which does all of it: on a busy machine the wall clock measures the others.
        used_s = time.thread_time()
        spent = timed(lambda one=one: put(store, [one]))
        used_s = time.thread_time() - used_s
        store.touch([record(int(random.integers(0, number + 1)), {}).key])
        number += 1
        if store.usage().evicted:
            latencies.append(spent)
            by_size.setdefault(size.bit_length(), []).append(spent)
            cpu_by_size.setdefault(size.bit_length(), []).append(used_s)
    usage, file_bytes = store.usage(), (folder / "store" / "data.mdb").stat().st_size
    store.close()
    tenth = len(latencies) // 10
    median, p99 = statistics.median(latencies), statistics.quantiles(latencies, n=100)[98]
    return {
        "puts": len(latencies),
        "live_over_quota": usage.stored_bytes / quota_bytes,
        "file_over_quota": file_bytes / quota_bytes,
        "median_ms": median * 1e3,
        "p99_ms": p99 * 1e3,
        "p99_over_median_all_sizes": p99 / median,
        # The sizes themselves differ by eighty times, so the goal is for puts of about one size.
        "p99_over_median_worst_size": _worst_p99(by_size),
        "cpu_p99_over_median_worst_size": _worst_p99(cpu_by_size),
        "goal": 5,
        "growth": statistics.median(latencies[-tenth:]) / statistics.median(latencies[:tenth]),
    }


def _worst_p99(times: dict[int, list[float]]) -> float:
    """p99 over median, of the sizes (by power of two) where it is worst."""
    return max(
        statistics.quantiles(same, n=100)[98] / statistics.median(same) for same in times.values() if len(same) >= 50
    )


CASES = {"density": density, "churn": churn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=list(CASES))
    parser.add_argument("--dir", type=Path, help="where to measure; default: the temporary folder")
    parser.add_argument("--puts", type=int, default=2000, help="for churn")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as in a server
    for case in options.cases:
        folder = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir=options.dir))
        try:
            print(case, json.dumps(CASES[case](folder, options), indent=2, default=str), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
