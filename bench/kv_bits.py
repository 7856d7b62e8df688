"""Keys and values in fewer bits, beside mlx_lm.server's `--kv-bits`: memory, first token and decoding of one prompt.

    python -m bench.kv_bits --model DIR [--words 400] [--tokens 64] [--rounds 3] [--json FILE]

Every server has a process of its own and is asked alone, in turns that begin with another one each round; mlx_lm.server
serves one request at a time with `--kv-bits`. A word is about eight tokens, and each round has other ones, so that
nothing is reused. Peak: the most resident memory of the server and what it started, above that after the load. Ratios
are medians over the rounds to the same server without `--kv-bits`. Figures of memory need a /proc, and are a CPU's.
"""

import argparse
import statistics
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.common.prefix_scenarios import chat
from bench.common.results import Results
from bench.common.servers import ServerProcess, shared_blas
from bench.http_client import Timeline, measure, user, words

CAIRN, PEER = "cairn", "mlx_lm.server"
FORMS = {CAIRN: ("off", "8", "8/4", "4"), PEER: ("off", "8", "4")}


def arguments_of(name: str, bits: str, model: Path) -> tuple[list[str], str]:
    """The arguments of a server, and the path of its health."""
    if name == CAIRN:
        return [
            "interfaces.cli",
            "serve",
            str(model),
            "--no-store",
            "--hot-tier",
            "0",
            "--kv-bits",
            bits,
        ], "/health/ready"
    quantised = [] if bits == "off" else ["--kv-bits", bits, "--quantized-kv-start", "0"]
    return ["mlx_lm", "server", "--model", str(model), "--log-level", "ERROR", *quantised], "/health"


def resident_bytes(server: ServerProcess, field: str) -> int:
    """VmRSS (now) or VmHWM (the most so far), of the server and its processes."""
    found = 0
    for pid in server.pids():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                found += int(line.split()[1]) * 1024
    return found


def decode_ms(timeline: Timeline) -> float:
    """The mean time between tokens."""
    return 1000 * statistics.mean(timeline.gaps_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    blas = shared_blas()
    results = Results(given.json, "kv_bits", model=str(given.model), words=given.words)
    figures: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    order = [(name, bits) for name, forms in FORMS.items() for bits in forms]
    for number in range(given.rounds):
        for name, bits in order[number:] + order[:number]:
            with TemporaryDirectory() as folder, ExitStack() as stack:
                arguments, health = arguments_of(name, bits, given.model)
                process = ServerProcess(arguments, health, Path(folder) / "log", environment=blas)
                server = stack.enter_context(process)
                first, asked = (
                    chat(str(given.model), [user(words(seed, count))])
                    for seed, count in ((7, 20), (100 + number, given.words))
                )
                asked["body"]["max_tokens"] = given.tokens
                measure(server.url, [first])  # loads, and makes what is made once
                before = resident_bytes(server, "VmRSS")
                (found,) = measure(server.url, [asked])
                peak = resident_bytes(server, "VmHWM") - before
            if found.error:
                raise SystemExit(f"{name} with {bits} bits failed: {found.error}")
            figures.setdefault((name, bits), []).append((peak / 2**20, 1000 * found.ttft_s, decode_ms(found)))
            print(number, name, bits, found.num_prompt, *(f"{one:.1f}" for one in figures[name, bits][-1]), flush=True)
    for (name, bits), rows in figures.items():
        plain = figures[name, "off"]
        ratios = [
            statistics.median(one[index] / other[index] for one, other in zip(rows, plain, strict=True))
            for index in range(3)
        ]
        medians = [statistics.median(row[index] for row in rows) for index in range(3)]
        names = ("peak_mib", "first_token_ms", "decode_ms")
        shown = {key: f"{median:.1f} ({ratio:.2f})" for key, median, ratio in zip(names, medians, ratios, strict=True)}
        results.add(f"{name}, {bits}", **shown)
        print(f"{name}, {bits}", shown)


if __name__ == "__main__":
    main()
