"""The commands for keys, a server that follows its key file, and the absence of keys from its output."""

import json
import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.server.test_cli_serve import SERVE, base_url
from tests.support.processes.cli_process import PATIENCE_S, cairn_process, run_here

BODY = {"prompt": "x", "max_tokens": 2}
TRACED = {
    "OTEL_SDK_DISABLED": "false",
    "OTEL_TRACES_EXPORTER": "console",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_BSP_SCHEDULE_DELAY": "50",
    "OTEL_INSTRUMENTATION_HTTP_CAPTURE_HEADERS_SERVER_REQUEST": ".*",
    "CAIRN_SERVER__LOG_LEVEL": "debug",
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


def made(home: Path, file: str, name: str, *options: str) -> str:
    done = run_here(home, "keys", "add", name, *options, CAIRN_SERVER__KEY_FILE=file)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_commands_add_list_and_remove(tmp_path: Path, file: str) -> None:
    key = made(tmp_path, file, "ci", "--requests-per-minute", "60", "--model", "m", "--salt", "")
    other = made(tmp_path, file, "laptop", "--admin")
    assert key.startswith("cairn_")
    assert len(key) > 40
    assert key != other
    text = Path(file).read_text()
    assert key not in text
    assert Path(file).stat().st_mode & 0o777 == 0o600
    listed = run_here(tmp_path, "keys", "list", "--json", "--file", file)
    none = {"requests_per_minute": None, "max_concurrent": None, "models": None, "priority": "interactive", "mcp": None}
    assert json.loads(listed.stdout) == [
        none | {"name": "ci", "has_salt": False, "requests_per_minute": 60, "models": ["m"], "admin": False},
        none | {"name": "laptop", "has_salt": True, "admin": True},
    ]
    assert "no limit" in run_here(tmp_path, "keys", "list", "--file", file).stdout
    assert run_here(tmp_path, "keys", "remove", "ci", "--file", file).returncode == 0
    assert "[keys.ci]" not in Path(file).read_text()
    added = run_here(tmp_path, "keys", "add", "x", "--json", "--file", file)
    assert json.loads(added.stdout)["key"].startswith("cairn_")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["add", "a b"], "letters, digits"),
        (["add", "default"], "taken by server.api_key"),
        (["add", "x", "--max-concurrent", "0"], "max_concurrent must be in"),
        (["remove", "x"], "has no key named 'x'"),
        (["list"], "does not exist; `cairn keys add NAME` makes one"),
    ],
    ids=["name", "reserved", "limit", "absent", "none"],
)
def test_commands_refuse_bad_names_and_limits(tmp_path: Path, file: str, arguments: list[str], reason: str) -> None:
    done = run_here(tmp_path, "keys", *arguments, CAIRN_SERVER__KEY_FILE=file)
    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(file).exists()


def test_without_a_file_to_write_to(tmp_path: Path) -> None:
    done = run_here(tmp_path, "keys", "add", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "server.key_file" in done.stderr


def test_a_server_follows_its_keys_and_writes_none_of_them(tmp_path: Path, file: str) -> None:
    admin, limited = made(tmp_path, file, "root", "--admin"), made(tmp_path, file, "ci", "--requests-per-minute", "3")
    with cairn_process(tmp_path, SERVE, CAIRN_SERVER__KEY_FILE=file, **TRACED) as cairn:
        url = base_url(cairn)

        def ask(key: str, path: str = "/v1/completions", method: str = "POST", query: str = "") -> httpx.Response:
            body = {"json": BODY} if method == "POST" else {}
            sent = {"authorization": f"Bearer {key}", "x-api-key": key}
            return httpx.request(method, url + path + query, headers=sent, timeout=PATIENCE_S, **body)  # type: ignore[arg-type]

        answers: list[httpx.Response] = [ask(limited), ask(limited, "/v1/cache/stats", "GET")]
        answers += [ask(limited, query=f"?api_key={limited}"), ask(limited)]
        assert [response.status_code for response in answers] == [200, 403, 200, 429]
        answers += [ask("junk-of-a-stranger"), ask(limited, "/metrics", "GET"), ask(admin, "/metrics", "GET")]
        assert [response.status_code for response in answers[4:]] == [401, 429, 200]
        metrics = answers[-1].text
        for reason in ("invalid_api_key", "not_allowed", "rate_limit_exceeded"):
            assert f'cairn_http_refused_total{{cairn_reason="{reason}"' in metrics
        cairn.read_until('"cairn.key.name": "ci"')

        later = made(tmp_path, file, "later")
        cairn.send(signal.SIGHUP)
        cairn.read_until("the key file was read again")
        answers.append(ask(later))
        assert answers[-1].status_code == 200
        Path(file).write_text("[broken")
        cairn.send(signal.SIGHUP)
        cairn.read_until("the previous keys stay valid")
        assert ask(later).status_code == 200
        assert 'cairn_faults_total{cairn_where="keys.read"' in ask(admin, "/metrics", "GET").text
        cairn.send(signal.SIGTERM)
        assert cairn.wait() == 0
        cairn.read_to_end()
    output = "".join(cairn.seen)
    assert "key=ci" in output
    sent_back = "".join(f"{response.text}{response.headers}" for response in answers)
    for key in (admin, limited, later, "junk-of-a-stranger"):
        assert key not in output
        assert key not in sent_back
        assert key not in metrics
