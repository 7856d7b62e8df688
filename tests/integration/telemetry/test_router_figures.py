"""The figures by which routers choose a server: there before anything is loaded, under vLLM's names if asked for."""

from adapters.otel.telemetry import RouterFigures
from application.events import Event, MemoryMeasured, ModelLoaded, ModelUnloaded
from domain.ids import ModelId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from tests.support.telemetry.all_metrics import exposed
from tests.support.telemetry.event_script import Script

DEMO = ModelId("demo")
LOADED = ModelLoaded(
    id=DEMO, duration_ns=1, weight_bytes=50, decode_mode="batched", note="", at_ns=1, active_bytes=0, token_bytes=2
)
LEDGER = MemoryLedger(weight_bytes=350, state_bytes=100, growth_bytes=200, live_bytes=99, limits=MemoryLimits.of(1000))
MEASURED = MemoryMeasured(ledger=LEDGER, level=0, at_ns=2)
ROUTERS = RouterFigures("demo", block_size=16, vllm_names=True)


def lines(*events: Event, routers: RouterFigures = ROUTERS) -> list[str]:
    return exposed("", events, routers).splitlines()


def test_they_are_0_before_a_model_is_loaded() -> None:
    found = lines()
    for line in (
        'cairn_requests_running{gen_ai_response_model="demo"} 0.0',
        'cairn_requests_waiting{gen_ai_response_model="demo"} 0.0',
        "cairn_kv_usage 0.0",
        "cairn_kv_block_size 16.0",
        'cairn_kv_blocks{gen_ai_response_model="demo"} 0.0',
        'vllm:num_requests_running{model_name="demo"} 0.0',
        'vllm:num_requests_waiting{model_name="demo"} 0.0',
        'vllm:kv_cache_usage_perc{model_name="demo"} 0.0',
        'vllm:cache_config_info{block_size="16",model_name="demo",num_gpu_blocks="0"} 1.0',
    ):
        assert line in found


def test_usage_is_what_open_requests_hold_and_are_promised_of_what_they_can_have() -> None:
    found = lines(LOADED, MEASURED, Script("one").queued())
    assert "cairn_kv_usage 0.5" in found
    assert 'cairn_kv_blocks{gen_ai_response_model="demo"} 18.0' in found
    assert 'vllm:kv_cache_usage_perc{model_name="demo"} 0.5' in found
    assert 'vllm:num_requests_waiting{model_name="demo"} 1.0' in found
    assert 'vllm:cache_config_info{block_size="16",model_name="demo",num_gpu_blocks="18"} 1.0' in found
    unloaded = lines(LOADED, MEASURED, ModelUnloaded(DEMO, 3))
    assert 'cairn_kv_blocks{gen_ai_response_model="demo"} 0.0' in unloaded


def test_vllms_names_are_shown_only_if_asked_for() -> None:
    assert not [line for line in lines(LOADED, routers=RouterFigures("demo", 16)) if "vllm" in line]
