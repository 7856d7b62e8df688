"""One benchmark of one server, from finding its model to a report; what is finished is kept when it is interrupted."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from application.settings import is_loopback
from domain.shown import shown
from interfaces.cli.bench.allowance import Allowance
from interfaces.cli.bench.decoding import measure_decoding
from interfaces.cli.bench.figures import Streams
from interfaces.cli.bench.report import Report
from interfaces.cli.bench.reuse import Reuse, ReuseOptions
from interfaces.cli.bench.target import BenchFailed, Target, new_client


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """`url` without a path. `model` empty: the server's only one. `streams`: how many answers of `tokens` are decoded
    at once, one after the other."""

    url: str
    model: str = ""
    reuse: ReuseOptions = field(default_factory=ReuseOptions)
    streams: tuple[int, ...] = (1, 4, 8)
    tokens: int = 128
    max_tokens: int = 250_000
    max_time_s: float = 600.0

    @property
    def num_asked(self) -> int:
        """Requests in all."""
        return self.reuse.num_asked + sum(self.streams)

    @property
    def settings(self) -> dict[str, Any]:
        named = asdict(self)
        return {name: value for name, value in named.items() if name not in {"url", "model"}}


class Bench:
    """`asked`: called with how many more requests were answered. `report` may be asked for at any time."""

    def __init__(
        self,
        plan: BenchPlan,
        api_key: str | None,
        sleep: Callable[[float], Awaitable[object]],
        asked: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._api_key = api_key
        self._sleep = sleep
        self._asked = asked
        self._allowance = Allowance(plan.max_tokens, plan.max_time_s, time.monotonic)
        self._target: Target | None = None
        self._reuse: Reuse | None = None
        self._streams: list[Streams] = []
        self._is_whole = False

    async def run(self) -> None:
        """Raises BenchFailed when the server cannot be measured at all, Spent when finding out takes all there is."""
        plan = self._plan
        is_local = is_loopback(urlsplit(plan.url).hostname or "")
        async with new_client(self._api_key, is_local=is_local) as client:
            target = self._target = Target(client, plan.url, plan.model, self._allowance)
            if not target.model:
                target.model = _only_one(await target.models())
            reuse = self._reuse = Reuse(target, plan.reuse, self._sleep, self._asked)
            await reuse.warm_up()
            if plan.reuse.rounds:
                await reuse.run()
            async for figures in measure_decoding(target, plan.streams, plan.tokens, plan.reuse.seed, self._sleep):
                self._streams.append(figures)
                self._asked(figures.num_streams)
        self._is_whole = True

    def report(self) -> Report:
        target, plan = self._target, self._plan
        scenarios = [one for one in self._reuse.scenarios.values() if one.ttft_s or one.note] if self._reuse else []
        return Report(
            url=plan.url,
            model=target.model if target is not None else plan.model,
            settings=plan.settings,
            scenarios=scenarios,
            streams=list(self._streams),
            num_tokens=self._allowance.num_tokens,
            ignores_eos=target is None or target.ignores_eos,
            is_cut=not self._is_whole,
        )


def _only_one(models: list[str]) -> str:
    if len(models) == 1:
        return models[0]
    if not models:
        raise BenchFailed("the server lists no model; name one with --model")
    raise BenchFailed(f"name one of the server's models with --model: {', '.join(map(shown, models[:20]))}")
