"""The times after which a step counts as stuck, and the threads that a report of it shows."""

STUCK_AFTER_GPU_S = 300.0
"""A chunk of 2048 tokens at a context of 100,000 takes a small Mac some 70 s with 8B parameters; compiling kernels the
first time takes a minute or less."""

STUCK_AFTER_CPU_S = 900.0
"""A chunk of 512 tokens there takes some 350 s on two cores."""

WATCHED_THREADS = ("cairn-compute", "MainThread", "cairn-")
"""The threads whose stacks a report of a stuck engine shows, the most telling first: how their names begin."""


def stuck_after_s(may_be_cpu: bool) -> float:
    """A time longer than any step of this device takes. `may_be_cpu`: the device is a CPU, or is not known yet."""
    return STUCK_AFTER_CPU_S if may_be_cpu else STUCK_AFTER_GPU_S
