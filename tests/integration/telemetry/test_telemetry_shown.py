"""The Grafana board, the alerts and the compose example name metrics and settings that exist. Checked by promtool (of
Debian's package `prometheus`) where it is installed, and by name against the catalogue."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from adapters.config.fields import setting_fields
from adapters.otel.catalogue import CATALOGUE, MEMORY_LEVEL, TELEMETRY_FAILURES
from domain.memory.pressure import Level
from domain.prefix.explanation import TIER_NAMES
from tests.support.telemetry.all_metrics import exposed, prometheus_name

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"][0]["rules"]
BOARD = json.loads((DEPLOY / "grafana-cairn.json").read_text())["panels"]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here")

NOT_ON_THE_BOARD: set[str] = set()
"""Metrics that are deliberately left out."""

ELSEWHERE = {
    "http_server_request_duration_seconds",
    "up",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}
"""Metrics of others: of OpenTelemetry's instrumentation, of Prometheus, of the process (where there is a /proc)."""

OURS = {prometheus_name(spec) for spec in CATALOGUE}
_METRIC = re.compile(r"\b(?:(?:cairn|gen_ai|http|process)_\w+|up\b(?=\{))")
_SAMPLE = re.compile(r"_(?:total|bucket|count|sum)$")


def asked(expressions: list[str]) -> set[str]:
    """Names of the metrics in PromQL; labels and what is grouped by left out."""
    bare = " ".join(re.sub(r'(?<!up)\{[^}]*\}|\b(?:by|on|ignoring) ?\([^)]*\)|"[^"]*"', "", one) for one in expressions)
    return {_SAMPLE.sub("", name) for name in _METRIC.findall(bare)}


def board_queries() -> list[str]:
    return [target["expr"] for panel in BOARD for target in panel.get("targets", ())]


def promtool(*arguments: str, stdin: str | None = None) -> None:
    done = subprocess.run(["promtool", *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_are_those_that_are_exposed() -> None:
    families = {family.name for family in text_string_to_metric_families(exposed("application/openmetrics-text"))}
    assert families >= OURS - {prometheus_name(TELEMETRY_FAILURES)}  # only when something failed
    assert "process_start_time_seconds" in families


def test_the_board_shows_every_metric_and_no_other() -> None:
    found = asked(board_queries())
    assert found - ELSEWHERE == OURS - NOT_ON_THE_BOARD


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    assert len({panel["id"] for panel in BOARD}) == len(BOARD)
    places = [
        (x, y)
        for spot in (panel["gridPos"] for panel in BOARD)
        for x in range(spot["x"], spot["x"] + spot["w"])
        for y in range(spot["y"], spot["y"] + spot["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) == 23


def test_alerts_are_about_metrics_that_exist() -> None:
    found = asked([rule["expr"] for rule in RULES])
    assert found <= OURS | ELSEWHERE
    assert len(found & OURS) > 10


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_to_do_in_words_that_are_true(rule: dict[str, Any]) -> None:
    annotations, names = rule["annotations"], {one["alert"] for one in RULES}
    text = annotations["runbook"]
    assert set(annotations) == {"summary", "runbook"}
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    settings = set(re.findall(r"\b(?:server|engine|model|store|cache|telemetry)\.[a-z_]+\b", text))
    assert settings <= set(setting_fields())
    assert set(re.findall(r"\bCairn[A-Z]\w+", text)) <= names
    assert asked([text]) <= OURS


def levels_in(text: str) -> dict[str, str]:
    """The levels of memory pressure that a text names, by number."""
    return dict(re.findall(r"\b(\d) ([a-z]+)", text))


def test_levels_of_memory_are_those_of_the_enum() -> None:
    named = {str(level.value): level.name.lower() for level in Level}
    (panel,) = (
        one for one in BOARD if any("cairn_memory_level" in target["expr"] for target in one.get("targets", ()))
    )
    assert levels_in(MEMORY_LEVEL.description) == levels_in(panel["description"]) == named
    (alert,) = (rule for rule in RULES if "cairn_memory_level" in rule["expr"])
    assert alert["expr"].endswith(f">= {Level.PAUSED.value}")
    short = {number: name for number, name in named.items() if int(number) >= Level.PAUSED}
    assert levels_in(alert["annotations"]["summary"]) == short


def test_reuse_counts_every_tier() -> None:
    matched = re.findall(r'cairn_origin=~"([^"]*)"', "".join([*board_queries(), *(rule["expr"] for rule in RULES)]))
    assert len(matched) >= 2
    assert {tuple(one.split("|")) for one in matched} == {TIER_NAMES}


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    promtool("check", "metrics", stdin=exposed(""))


@needs_promtool
def test_promtool_takes_the_alerts_and_prometheus_settings() -> None:
    promtool("check", "rules", str(DEPLOY / "prometheus-rules.yaml"))
    promtool("check", "config", "--syntax-only", str(DEPLOY / "prometheus.yaml"))


@needs_promtool
def test_promtool_takes_every_query_of_the_board(tmp_path: Path) -> None:
    filled = [query.replace("$__rate_interval", "5m").replace("$model", ".*") for query in board_queries()]
    rules = [{"record": f"board:{number}", "expr": query} for number, query in enumerate(filled)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", "--lint=none", str(file))


FIRING: dict[str, dict[str, str]] = {
    "CairnDown": {'up{job="cairn"}': "0x120"},
    "CairnStuck": {"cairn_engine_stuck": "1x120"},
    "CairnNotReady": {"cairn_ready": "0x120"},
    "CairnEngineLost": {"cairn_engine_restarts_total": "0+1x120"},
    "CairnErrors": {
        'cairn_requests_ended_total{cairn_reason="error", error_type="compute_failed"}': "0+1x120",
        'cairn_requests_ended_total{cairn_reason="stop"}': "0+9x120",
    },
    "CairnRefuses": {'cairn_requests_refused_total{error_type="queue_full"}': "0+60x120"},
    "CairnQueueTime": {
        'cairn_queue_time_seconds_bucket{le="10.0"}': "0x120",
        'cairn_queue_time_seconds_bucket{le="20.0"}': "0+5x120",
        'cairn_queue_time_seconds_bucket{le="+Inf"}': "0+5x120",
    },
    "CairnLowReuse": {
        'cairn_prompt_tokens_total{cairn_origin="computed"}': "0+900x120",
        'cairn_prompt_tokens_total{cairn_origin="hot"}': "0+100x120",
        'cairn_requests_ended_total{cairn_reason="stop"}': "0+9x120",
        "process_start_time_seconds": "0x120",
    },
    "CairnStoreNearQuota": {
        'cairn_cache_used_bytes{cairn_cache_tier="store"}': "99x120",
        'cairn_cache_limit_bytes{cairn_cache_tier="store"}': "100x120",
        'cairn_cache_evicted_total{cairn_cache_tier="store", cairn_reason="room"}': "0+1x120",
    },
    "CairnStoreDrops": {'cairn_store_records_total{cairn_outcome="dropped", cairn_reason="queue_full"}': "0+1x120"},
    "CairnWriteLag": {
        'cairn_store_write_lag_seconds_bucket{le="30.0"}': "0x120",
        'cairn_store_write_lag_seconds_bucket{le="60.0"}': "0+5x120",
        'cairn_store_write_lag_seconds_bucket{le="+Inf"}': "0+5x120",
    },
    "CairnMemoryPressure": {"cairn_memory_level": f"{Level.PAUSED.value}x120"},
    "CairnSharedStoreAway": {"cairn_shared_available": "0x120"},
    "CairnPreempts": {"cairn_requests_preempted_total": "0+5x120"},
    "CairnFaults": {'cairn_faults_total{cairn_where="engine.step"}': "0+5x120"},
    "CairnParserFailures": {'cairn_parser_failures_total{cairn_parser="json"}': "0+1x120"},
    "CairnTelemetryFails": {'cairn_telemetry_failures_total{cairn_event="StepCompleted"}': "0+1x120"},
}
"""For each alert what makes it come."""

QUIET = {
    'up{job="cairn"}': "1x120",
    "cairn_engine_stuck": "0x120",
    "cairn_ready": "1x120",
    'cairn_requests_ended_total{cairn_reason="stop"}': "0+9x120",
    'cairn_requests_ended_total{cairn_reason="error", error_type="compute_failed"}': "0x120",
    'cairn_requests_refused_total{error_type="invalid_request"}': "0+60x120",
    'cairn_prompt_tokens_total{cairn_origin="computed"}': "0+100x120",
    'cairn_prompt_tokens_total{cairn_origin="hot"}': "0+10x120",
    'cairn_prompt_tokens_total{cairn_origin="shared"}': "0+890x120",
    "process_start_time_seconds": "0x120",
    'cairn_cache_used_bytes{cairn_cache_tier="store"}': "50x120",
    'cairn_cache_limit_bytes{cairn_cache_tier="store"}': "100x120",
    'cairn_store_write_lag_seconds_bucket{le="30.0"}': "0+5x120",
    'cairn_store_write_lag_seconds_bucket{le="+Inf"}': "0+5x120",
    'cairn_store_records_total{cairn_outcome="persisted"}': "0+5x120",
    'cairn_store_records_total{cairn_outcome="dropped", cairn_reason="shutdown"}': "0+5x120",
    "cairn_memory_level": f"{Level.LEAN.value}x120",
    "cairn_shared_available": "1x120",
    "cairn_requests_preempted_total": "0x120",
    'cairn_faults_total{cairn_where="engine.step"}': "1x120",
}
"""A server that is well."""


FIRST: dict[str, dict[str, str]] = {
    "CairnEngineLost": {"cairn_engine_restarts_total": "_x102 3x6"},
    "CairnFaults": {'cairn_faults_total{cairn_where="engine.step"}': "_x106 9x2"},
    "CairnParserFailures": {'cairn_parser_failures_total{cairn_parser="json"}': "_x106 1x2"},
    "CairnTelemetryFails": {'cairn_telemetry_failures_total{cairn_event="StepCompleted"}': "_x102 1x6"},
}
"""Series of counters that begin with a first occurrence and then stay constant."""


def test_every_alert_is_tried() -> None:
    assert set(FIRING) == {rule["alert"] for rule in RULES}


@needs_promtool
@pytest.mark.parametrize("firing", [FIRING, FIRST], ids=["again and again", "for the first time"])
def test_each_alert_comes_when_it_should_and_none_otherwise(firing: dict[str, dict[str, str]], tmp_path: Path) -> None:
    """A server for each alert, named after it, and one that is well."""
    series = [
        {"series": _of(server, selector), "values": values}
        for server, values_of in {**firing, "well": QUIET}.items()
        for selector, values in values_of.items()
    ]
    samples = [{"labels": f'{{alertname="{name}", instance="{name}"}}', "value": 1} for name in firing]
    query = 'count by (alertname, instance) (ALERTS{alertstate="firing"})'
    asked = [{"expr": query, "eval_time": "9h", "exp_samples": samples}]
    test = {"interval": "5m", "input_series": series, "promql_expr_test": asked}
    rules = str(DEPLOY / "prometheus-rules.yaml")
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"rule_files": [rules], "evaluation_interval": "5m", "tests": [test]}))
    promtool("test", "rules", str(file))


def _of(server: str, selector: str) -> str:
    name, _, labels = selector.partition("{")
    return f'{name}{{instance="{server}"{", " if labels else "}"}{labels}'


def test_the_example_mounts_what_is_there_and_listens_to_this_machine_alone() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"cairn", "collector", "prometheus", "grafana"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service.get("volumes", ()):
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                assert (DEPLOY / source).is_file(), volume
                assert mode == ["ro"], volume
            else:
                assert source in COMPOSE["volumes"], volume
            assert target.startswith("/")
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
        assert ("build" in service) != (":" in service.get("image", ""))
    build = services["cairn"]["build"]
    assert (DEPLOY / build["context"]).resolve() == DEPLOY.parent


def test_the_example_sets_what_there_is_to_set() -> None:
    variables = {one.variable for one in setting_fields().values()}
    own = [name for name in COMPOSE["services"]["cairn"]["environment"] if name.startswith("CAIRN_")]
    assert own
    assert set(own) <= variables


def test_grafana_is_given_the_board_and_what_it_asks() -> None:
    mounts = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    folder = yaml.safe_load((DEPLOY / "grafana/dashboards.yaml").read_text())["providers"][0]["options"]["path"]
    assert mounts["./grafana-cairn.json"].startswith(f"{folder}/")
    (source,) = yaml.safe_load((DEPLOY / "grafana/datasources.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


def test_the_collector_takes_every_signal_that_is_sent() -> None:
    pipelines = yaml.safe_load((DEPLOY / "otel-collector.yaml").read_text())["service"]["pipelines"]
    assert set(pipelines) == {"traces", "metrics"}
