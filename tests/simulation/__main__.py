"""`python -m tests.simulation SEED [LAST]`: replay one seed, or try a range of them and name those that fail."""

import sys
import traceback
from collections import Counter

from tests.simulation.simulator import Simulation
from tests.simulation.test_simulation import NUM_ACTIONS


def main() -> int:
    first = int(sys.argv[1])
    last = int(sys.argv[2]) if len(sys.argv) > 2 else first
    total: Counter[str] = Counter()
    failed: list[int] = []
    for seed in range(first, last + 1):
        try:
            total += Simulation(seed).run(NUM_ACTIONS)
        except Exception:
            failed.append(seed)
            sys.stderr.write(f"seed {seed}\n{traceback.format_exc()}\n")
    sys.stdout.write(f"{last - first + 1} runs, failed: {failed or 'none'}\n")
    sys.stdout.write("".join(f"  {name}: {count}\n" for name, count in sorted(total.items())))
    return 1 if failed else 0


sys.exit(main())
