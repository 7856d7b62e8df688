"""The value of reuse to a client: time to first token, Cairn beside its peers, over HTTP, in one run.

    python -m bench.prefix [--models cairn-demo,cairn-demo-hybrid] [--rounds 5] [--vllm-mlx PYTHON] [--json FILE]

All servers run at once and are asked in turn (bench.common.prefix_scenarios). Figures are medians of milliseconds to
the first token (for the eight streams: until the last of them has its first token). A ratio is the median over paired
requests, with the lowest and the highest behind it; the baseline is the peer with the lowest median.
"""

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from adapters.huggingface.model_folder import embedded_folder
from bench.common.float32 import float32_copy
from bench.common.prefix_scenarios import GROUPS, Contender, Scenarios
from bench.common.servers import ServerProcess, shared_blas


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cairn-demo,cairn-demo-hybrid")
    parser.add_argument("--words", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", default=",".join(GROUPS), help="scenarios to run")
    parser.add_argument("--vllm-mlx", help="a Python that has vllm-mlx installed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for model in options.models.split(","):
        contenders = compare(model, options)
        print_table(model, contenders)
        results[model] = {one.name: {"ms": one.ms, "computed": one.computed} for one in contenders}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def compare(model: str, options: argparse.Namespace) -> list[Contender]:
    """Cairn first."""
    preload = shared_blas()
    scratch = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
    folder = str(float32_copy(embedded_folder(model) or Path(model), scratch / "model"))
    try:
        with ExitStack() as running:
            contenders = [
                Contender(name, running.enter_context(server), folder)
                for name, server in servers(folder, preload, options.vllm_mlx, scratch)
            ]
            Scenarios(contenders, options.words, options.rounds).run(options.groups.split(","))
        return contenders
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def servers(
    folder: str, preload: Mapping[str, str], vllm_python: str | None, scratch: Path
) -> list[tuple[str, ServerProcess]]:
    """None of them started."""
    found = []
    for name, store in (("cairn", str(scratch / "store")), ("cairn, no store", "off")):
        arguments = ["interfaces.cli", "serve", folder, "--store", store]
        found.append((name, ServerProcess(arguments, "/health/ready", scratch / f"{name}.log")))
    arguments = ["mlx_lm", "server", "--model", folder, "--log-level", "ERROR", "--prompt-concurrency", "1"]
    found.append(("mlx_lm.server", ServerProcess(arguments, "/health", scratch / "mlx_lm.log", environment=preload)))
    if vllm_python:
        arguments = ["vllm_mlx.cli", "serve", folder, "--offline", "--continuous-batching"]
        environment = {**preload, "HOME": str(scratch)}
        peer = ServerProcess(arguments, "/health", scratch / "vllm.log", python=vllm_python, environment=environment)
        found.append(("vllm-mlx", peer))
    return found


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Median of the ratios round by round, and their range."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"


def print_table(model: str, contenders: Sequence[Contender]) -> None:
    """Rows are scenarios; the last column is Cairn against the best peer."""
    cairn, peers = contenders[0], [one for one in contenders if not one.name.startswith("cairn")]
    print(f"\n{model}: ms to the first token, medians (tokens computed)")
    print("| | " + " | ".join(one.name for one in contenders) + " | cairn / best peer, paired (range) |")
    print("|---" * (len(contenders) + 2) + "|")
    for scenario, ours in cairn.ms.items():
        cells = [f"{statistics.median(one.ms[scenario]):,.0f} ({one.computed[scenario]:,})" for one in contenders]
        best = min(peers, key=lambda one: statistics.median(one.ms[scenario]))
        print(f"| {scenario} | " + " | ".join(cells) + f" | {paired_ratio(ours, best.ms[scenario])} {best.name} |")


if __name__ == "__main__":
    main()
