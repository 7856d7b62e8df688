"""The files of deploy/fleet: three servers, a proxy, a shared server and their monitoring use the same names.

The configurations of the proxies run in tests/integration/http/test_fleet_routing.py, those of routers in
test_fleet_routers.py beside it.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from adapters.config.loader import load_settings
from application.settings import Settings
from interfaces.http.incoming.request_context import HEALTH_PATHS

FLEET = Path(__file__).parents[3] / "deploy/fleet"
ROUTERS = ("vllm-router.sh", "sglang-router.sh")
SERVERS = ["cairn-1:8000", "cairn-2:8000", "cairn-3:8000"]
COMPOSE: dict[str, Any] = yaml.safe_load((FLEET / "compose.yaml").read_text())
OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all((FLEET / "kubernetes.yaml").read_text()))
VALIDATE = os.environ.get("CAIRN_KUBERNETES_VALIDATE") or shutil.which("kubernetes-validate")


def object_of(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def container_of(kind: str, name: str) -> dict[str, Any]:
    (found,) = object_of(kind, name)["spec"]["template"]["spec"]["containers"]
    return found


def settings_of(variables: dict[str, Any]) -> Settings:
    cairns = {name: re.sub(r"\$\{.*\}", "a-secret", str(value)) for name, value in variables.items()}
    kept = {name: value for name, value in cairns.items() if name.startswith("CAIRN_")}
    return load_settings({**kept, "CAIRN_CONFIG": "/dev/null"}).settings


def test_every_file_names_the_same_three_servers() -> None:
    for name in ("haproxy.cfg", "nginx.conf", "prometheus.yaml", *ROUTERS):
        assert re.findall(r"cairn-\d:8000", (FLEET / name).read_text()) == SERVERS, name
    assert [f"{name}:8000" for name in COMPOSE["services"] if name.startswith("cairn-")] == SERVERS
    servers = object_of("StatefulSet", "cairn")["spec"]
    assert (servers["replicas"], servers["ordinals"]["start"]) == (3, 1)


def test_the_settings_exist_and_share_one_store_with_a_key() -> None:
    entries = container_of("StatefulSet", "cairn")["env"]
    kubernetes = {entry["name"]: entry.get("value", "a-secret") for entry in entries}
    for variables in (COMPOSE["x-cairn"]["environment"], kubernetes):
        settings = settings_of(variables)
        assert settings.store.shared == "redis://valkey:6379/0"
        assert settings.store.shared_key_file
        assert settings.store.shared_password == settings.server.api_key == "a-secret"
        assert (
            set(settings.server.allowed_hosts) >= {name.partition(":")[0] for name in SERVERS}
            or variables is kubernetes
        )


def test_the_shared_server_evicts_and_needs_a_password() -> None:
    compose, kubernetes = COMPOSE["services"]["valkey"], container_of("Deployment", "valkey")
    for command in (compose["command"], kubernetes["command"]):
        words = " ".join(command)
        for option in ("--maxmemory ", "--maxmemory-policy allkeys-lru", "--requirepass", "--save ''"):
            assert option in words
    assert "ports" not in compose, "it is reached from inside only"
    assert object_of("NetworkPolicy", "valkey")["spec"]["ingress"][0]["from"]


def test_probes_ask_for_what_there_is_and_a_stop_has_its_time() -> None:
    container = container_of("StatefulSet", "cairn")
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert container[probe]["httpGet"]["path"] in HEALTH_PATHS
    pod = object_of("StatefulSet", "cairn")["spec"]["template"]["spec"]
    (seconds,) = [int(word) for word in container["lifecycle"]["preStop"]["exec"]["command"] if word.isdigit()]
    assert pod["terminationGracePeriodSeconds"] >= 80 + seconds  # as deploy.md says of a stop
    for name in ("haproxy.cfg", "nginx.conf", *ROUTERS):
        assert re.search(
            r"httpchk GET /health/ready|http_503|--health-check-endpoint /health/ready", (FLEET / name).read_text()
        )


def test_a_router_is_reached_from_its_own_machine_only() -> None:
    for name in ROUTERS:
        text = (FLEET / name).read_text()
        assert "--host 127.0.0.1 " in text
        assert "--prometheus-host 127.0.0.1 " in text
        assert not re.search(r"(?<!plane)-api-key\b", text), "it would be sent for whoever asks without a key"


def test_no_container_runs_as_root_or_without_a_bound() -> None:
    for one in OBJECTS:
        if one["kind"] in ("Deployment", "StatefulSet"):
            pod = one["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            for container in pod["containers"]:
                assert "memory" in container["resources"]["limits"], container["name"]


def test_what_compose_mounts_exists() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (FLEET / source).exists(), (name, source)


@pytest.mark.skipif(VALIDATE is None, reason="no kubernetes-validate on the PATH (CAIRN_KUBERNETES_VALIDATE names one)")
def test_the_manifests_match_their_schemas() -> None:
    assert VALIDATE is not None
    command = [VALIDATE, "--strict", str(FLEET / "kubernetes.yaml")]
    reported = subprocess.run(command, capture_output=True, text=True, check=False)
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert (reported.stdout + reported.stderr).count(" passed ") == len(OBJECTS)
