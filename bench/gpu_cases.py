"""The cases of `bench.gpu`, most worth first, and what is to come of them."""

from dataclasses import dataclass

from bench.case import Case, Figure, Goal

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """`shape`: of most cases; `joins_shape`: of batches; `loop_shape`: of a family that goes through its tokens."""

    shape: str
    joins_shape: str
    loop_shape: str
    at: tuple[int, ...]
    loop_at: tuple[int, ...]
    turn_tokens: int
    restore_tokens: int
    words: int
    streams: tuple[int, ...]
    rows: tuple[int, ...]
    crowd: tuple[int, int]
    rates: tuple[int, ...]
    persist: tuple[str, ...]


REAL = Sizes(
    shape="qwen3-4b",
    joins_shape="llama-8b",
    loop_shape="qwen3.5-4-layers",
    at=(8, 32, 64),
    loop_at=(8, 32),
    turn_tokens=72_000,
    restore_tokens=32_768,
    words=8600,
    streams=(1, 8, 32, 64),
    rows=(1, 8, 31),
    crowd=(32, 8000),
    rates=(300, 1200, 1500),
    persist=(),
)
TINY = Sizes(
    shape="tiny",
    joins_shape="tiny",
    loop_shape="tiny-hybrid",
    at=(1,),
    loop_at=(1,),
    turn_tokens=600,
    restore_tokens=512,
    words=30,
    streams=(1, 2),
    rows=(1, 2),
    crowd=(2, 300),
    rates=(20, 40),
    persist=("--scale", "36", "--seconds", "1"),
)


def gpu_cases(*, is_tiny: bool) -> tuple[Case, ...]:
    sizes = TINY if is_tiny else REAL
    at_once = () if is_tiny else ("--accelerator",)
    return (
        Case("device", ("-m", "bench.device", *at_once, "--json", "{json}"), 120),
        _memory_peak("memory_peak", sizes.shape, sizes.at, ("--seconds", "25")),
        _memory_peak("memory_free", sizes.shape, sizes.at, ("--seconds", "25", "--run-ahead", "none")),
        _run_ahead(sizes, is_tiny=is_tiny),
        _next_turn(sizes),
        _memory_peak("memory_loop", sizes.loop_shape, sizes.loop_at, ("--seconds", "60")),
        _restore(sizes),
        Case("model", ("-m", "bench.model_folder", sizes.shape, _model(sizes)), 150, worth_s=20, needs=("device",)),
        _long_context(sizes),
        _streams(sizes),
        _crowd(sizes),
        _joins(sizes),
        _persist(sizes),
        _constrained(sizes, is_tiny=is_tiny),
    )


def _model(sizes: Sizes) -> str:
    return f"{{work}}/{sizes.shape}"


def _memory_peak(name: str, shape: str, at: tuple[int, ...], more: tuple[str, ...]) -> Case:
    marks = ",".join(f"{mark}k" for mark in at)
    is_free = "none" in more
    goals = [
        Goal(
            f"estimate at {mark}k" + (" without a bound" if is_free else ""),
            Figure("peak", "ratio", {"at": mark * 1024}),
            "over the measured peak of everything, last round",
            at_most=None if is_free else 1.25,
            at_least=None if is_free else 0.75,
        )
        for mark in at
    ]
    speed = Figure("peak", "prefill_tokens_s", {"at": at[-1] * 1024})
    goals.append(Goal(f"prefill up to {at[-1]}k, tokens/s", speed, "no ratio"))
    command = ("-m", "bench.memory_peak", "--shapes", shape, "--at", marks, "--rounds", "2", *more, "--json", "{json}")
    return Case(name, command, 130, worth_s=40, goals=tuple(goals), needs=("device",))


def _run_ahead(sizes: Sizes, *, is_tiny: bool) -> Case:
    size = (
        ("--tokens", "1024", "--turns", "1", "--bound", "1MiB") if is_tiny else ("--tokens", str(sizes.restore_tokens))
    )
    goals = (
        Goal("prefill, held to its bound", Figure("held", "over_free"), "over no bound, by turns"),
        Goal("... only waiting for the chunk before", Figure("waits only", "over_free"), "over no bound, by turns"),
        Goal("... ms a chunk", Figure("waits only", "chunk_ms"), "beyond no bound"),
    )
    command = ("-m", "bench.run_ahead", "--shape", sizes.shape, *size, "--seconds", "{seconds}", "--json", "{json}")
    return Case("run_ahead", command, 90, worth_s=50, setup_s=40, goals=goals, needs=("device",))


def _next_turn(sizes: Sizes) -> Case:
    goals = (
        Goal("next turn, state taken over", Figure("taken over", "of_computing"), "over computing its tokens", 1.3),
        Goal("... computing them, ms", Figure("taken over", "computing_ms"), "no ratio"),
        Goal("... held beyond the state, MiB", Figure("taken over", "computing_peak_mib"), "no ratio"),
        Goal("next turn, restored from memory", Figure("restored", "of_computing"), "over computing its tokens"),
    )
    size = ("--shape", sizes.shape, "--tokens", str(sizes.turn_tokens), "--new", "440")
    command = ("-m", "bench.next_turn", *size, "--seconds", "{seconds}", "--json", "{json}")
    return Case("next_turn", command, 130, worth_s=50, setup_s=60, goals=goals, needs=("device",))


def _restore(sizes: Sizes) -> Case:
    reuse = [
        ("restore from device payloads", "hot_over_prefill"),
        ("restore from host payloads", "host_over_prefill"),
        ("upload of planes, and restore", "planes_over_prefill"),
    ]
    goals = (
        *(Goal(text, Figure("reuse", name), "rate over prefill's, same run", at_least=1) for text, name in reuse),
        Goal("planes bit for bit", Figure("reuse", "planes_are_equal"), "1: as captured", at_least=1),
        Goal("... share in planes", Figure("reuse", "share_in_planes"), "of the payloads"),
        Goal("the bus is used directly", Figure("model", "cuda_link"), "1: yes", at_least=1),
        Goal("longest upload of a read, ms", Figure("reuse", "upload_longest_ms"), "no ratio"),
        Goal("prefill", Figure("reuse", "prefill_over_mlx_lm"), "over mlx-lm's loop, by turns"),
    )
    size = (sizes.shape, "--tokens", str(sizes.restore_tokens), "--batches", "")
    command = ("-m", "bench.restore", *size, "--seconds", "{seconds}", "--json", "{json}")
    return Case("restore", command, 150, worth_s=60, goals=goals, needs=("device",))


def _long_context(sizes: Sizes) -> Case:
    def step(name: str, figure: str, server: str = "cairn") -> Figure:
        return Figure("step", figure, {"step": name, "server": server})

    def beside(name: str) -> Figure:
        return Figure("beside", "over_peer", {"step": name})

    goals = (
        Goal("after a restart", step("after restart", "over_cold"), "over cold", 0.334),
        Goal("share stored 2 s before kill -9", Figure("stored", "share"), "of its tokens", at_least=0.99),
        Goal("after kill -9", step("after kill -9", "over_cold"), "over cold"),
        Goal("exact repeat, ms", step("repeat", "ttft_ms"), "no ratio", 60),
        Goal("next turn, ms", Figure("turns", "ttft_ms", {"server": "cairn"}), "no ratio"),
        Goal(
            "... over HTTP",
            Figure("alone", "turns_over_computing"),
            "over computing its tokens alone, same run",
            1.3,
        ),
        Goal("... computing them alone, ms", Figure("alone", "computing_ms"), "no ratio"),
        Goal("cold, ms", step("cold", "ttft_ms"), "no ratio"),
        Goal("cold", beside("cold"), "over mlx_lm.server, one after the other"),
        Goal("second turn", beside("turn 2"), "over mlx_lm.server"),
        Goal("after a restart", beside("after restart"), "over mlx_lm.server"),
    )
    size = ("--model", _model(sizes), "--words", str(sizes.words), "--without", "cancel")
    command = ("-m", "bench.long_context", *size, "--seconds", "{seconds}", "--json", "{json}")
    return Case("long_context", command, 460, worth_s=120, setup_s=40, goals=goals, needs=("device", "model"))


def _streams(sizes: Sizes) -> Case:
    def speed(streams: int, kind: str) -> Figure:
        return Figure("streams", "speed", {"streams": streams, "side": f"serve --engine {kind}"})

    most = sizes.streams[-1]
    goals = tuple(
        Goal(
            f"{streams} streams, engine in a {kind}",
            speed(streams, kind),
            "speed over the bare loop, by turns",
            at_least=0.97 if kind == "process" and streams != most else None,
        )
        for kind in ("process", "thread")
        for streams in sizes.streams
    )
    sides = ("--serve", "--engine process", "--serve", "--engine thread")
    counts = ("--streams", *map(str, sizes.streams))
    command = ("-m", "bench.streams", "--model", _model(sizes), *counts, *_equals(sides))
    more = ("--seconds", "{seconds}", "--json", "{json}")
    return Case("streams", (*command, *more), 270, worth_s=90, setup_s=90, goals=goals, needs=("device", "model"))


def _equals(options: tuple[str, ...]) -> tuple[str, ...]:
    """As NAME=VALUE: a value may begin with a dash."""
    return tuple(f"{name}={value}" for name, value in zip(options[::2], options[1::2], strict=True))


def _crowd(sizes: Sizes) -> Case:
    streams, tokens = sizes.crowd
    goals = (
        Goal(f"{streams} x {tokens} tokens answered", Figure("crowd", "share", of=min), "of all, worst", at_least=1),
        Goal("most in use", Figure("crowd", "reading_over_used", of=max), "over the ledger's most"),
        Goal("... the ledger's most, bytes", Figure("crowd", "used_bytes", of=max), "no ratio"),
        Goal("... the device's, bytes", Figure("crowd", "device_bytes", of=max), "no ratio"),
        Goal("last first token, s", Figure("crowd", "last_first_token_s", of=max), "no ratio"),
    )
    size = ("--model", _model(sizes), "--streams", str(streams), "--tokens", str(tokens))
    command = ("-m", "bench.crowd", *size, "--json", "{json}")
    return Case("crowd", command, 120, worth_s=50, goals=goals, needs=("device", "model"))


def _joins(sizes: Sizes) -> Case:
    one, *more = sizes.rows
    streams, tokens = sizes.crowd
    alone = Figure("in_place", "ms", {"rows": one})
    goals = (
        *(
            Goal(
                f"a row joins {rows}, in place",
                Figure("in_place", "ms", {"rows": rows}),
                f"over joining {one}",
                1.5,
                beside=alone,
            )
            for rows in more
        ),
        Goal(f"... {one}, ms", alone, "no ratio"),
        Goal(f"{streams} decode, peak", Figure("streams", "peak_over_ledger"), "over the ledger's sum"),
    )
    size = ("--shape", sizes.joins_shape, "--tokens", str(tokens), "--rows", ",".join(map(str, sizes.rows)))
    command = ("-m", "bench.joins", *size, "--streams", str(streams), "--seconds", "{seconds}", "--json", "{json}")
    return Case("joins", command, 130, worth_s=60, setup_s=40, goals=goals, needs=("device",))


def _persist(sizes: Sizes) -> Case:
    def rate(name: str, rate_mb_s: int) -> Figure:
        return Figure("rate", name, {"rate_MB_s": float(rate_mb_s)})

    goals = tuple(
        goal
        for mb_s in sizes.rates
        for goal in (
            Goal(f"{mb_s} MB/s: oldest at a kill, s", rate("at_kill_s", mb_s), "no ratio", 2),
            Goal("... refused, MB", rate("dropped_MB", mb_s), "no ratio", 0),
        )
    )
    rates = ("--rates", *map(str, sizes.rates))
    command = ("-m", "bench.persist", *rates, *sizes.persist, "--flush-seconds", "20", "--json", "{json}")
    return Case("persist", command, 110, worth_s=30, goals=goals, needs=("device",))


def _constrained(sizes: Sizes, *, is_tiny: bool) -> Case:
    goals = tuple(
        Goal(f"{name}, {rows} rows", Figure(name, "overhead", {"rows": rows}), "beyond free steps, by turns")
        for rows in (1, 8)
        for name in ("any text", "JSON")
    )
    turns = ("--turns", "2") if is_tiny else ()
    command = ("-m", "bench.constrained", "--model", _model(sizes), *turns)
    more = ("--seconds", "{seconds}", "--json", "{json}")
    return Case("constrained", (*command, *more), 110, worth_s=50, setup_s=50, goals=goals, needs=("device", "model"))


__all__ = ("gpu_cases",)
