"""The figures that vLLM's consumers read, under vLLM's names: llm-d, the inference gateway, vllm-router.

OpenTelemetry allows no colon in a name, so these are collected for `GET /metrics` alone.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from adapters.otel.metrics import View
from application.services.request_timelines import Stage

_MODEL = "model_name"


class VllmNames(Collector):
    """The collector of one server. Any thread."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[GaugeMetricFamily]:
        view, num_blocks = self._view, self._view.kv.num_blocks()
        running = GaugeMetricFamily("vllm:num_requests_running", "Requests in prefill or decode.", labels=[_MODEL])
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests waiting for admission.", labels=[_MODEL])
        usage = GaugeMetricFamily("vllm:kv_cache_usage_perc", "Share of the KV memory in use, 0 to 1.", labels=[_MODEL])
        labels = [_MODEL, "block_size", "num_gpu_blocks"]
        info = GaugeMetricFamily("vllm:cache_config_info", "Blocks of the KV memory: always 1.", labels=labels)
        for model, count in view.num_open(Stage.PREFILLING, Stage.DECODING).items():
            running.add_metric([model], count)
            usage.add_metric([model], view.kv.usage)
        for model, count in view.num_open(Stage.WAITING).items():
            waiting.add_metric([model], count)
        for model, count in num_blocks.items():
            info.add_metric([model, str(view.kv.block_size), str(count)], 1)
        yield from (running, waiting, usage, info)
