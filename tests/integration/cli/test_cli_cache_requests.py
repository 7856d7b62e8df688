"""`cairn cache explain` and `warm` against a running server, and what they say when there is none."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.settings import CacheSettings, ServerSettings
from tests.support.http.clients import key_argument
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.processes.cli_process import run_here

SYSTEM = {"role": "system", "content": "Be brief.\n" * 40}
MONDAY = {"messages": [SYSTEM, {"role": "user", "content": "Is it Monday?"}]}
SUNDAY = {"messages": [SYSTEM, {"role": "user", "content": "Is it Sunday?\x1b[31m"}]}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    """With a key, and yet showing stored text; the prompt of MONDAY is stored."""
    settings = ServerSettings(port=0, api_key="hunter2")
    options = FakeOptions(eos_every=0)
    cache = CacheSettings(show_text="on")
    with fake_service(
        options, settings=settings, reuses=True, store=MemoryBlockStore(), cache_settings=cache
    ) as running:
        running.client.headers["x-api-key"] = "hunter2"
        running.client.post("/v1/cache/warm", json=MONDAY)
        yield running


def write(folder: Path, request: Any) -> str:
    file = folder / "request.json"
    file.write_text(json.dumps(request))
    return str(file)


def test_explain_shows_both_sides(service: FakeService, tmp_path: Path) -> None:
    arguments = ("cache", "explain", write(tmp_path, SUNDAY), "--url", service.base_url, *key_argument("hunter2"))
    result = run_here(tmp_path, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "fake-attention: 447 prompt tokens, 410 reused (410 from memory, 0 from the store), 37 to compute",
        "never-seen: From token 422 on the prompt differs from what is stored.",
        r"  both    ...<|start|>user\nIs it ",
        r"  prompt  Sunday?\x1b[31m",
        r"  stored  Monday?<|end|>\n<|start|>as",
        "The last expected fork before that is at token 410 (system end).",
    ]


def test_explain_as_json_from_stdin_is_the_server_s_answer(service: FakeService, tmp_path: Path) -> None:
    arguments = ("cache", "explain", "-", "--url", f"{service.base_url}/v1/", "--json")
    result = run_here(tmp_path, *arguments, stdin=json.dumps(SUNDAY), CAIRN_SERVER__API_KEY="hunter2")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == service.client.post("/v1/cache/explain", json=SUNDAY).json()


def test_several_prompts_are_numbered(service: FakeService, tmp_path: Path) -> None:
    request = {"prompt": ["one", "two"], "model": "unheard-of"}
    arguments = ("--url", service.base_url, *key_argument("hunter2"), "--model", "fake-hybrid")
    result = run_here(tmp_path, "cache", "explain", write(tmp_path, request), *arguments)
    heads = [line for line in result.stdout.splitlines() if "prompt tokens" in line]
    assert [head.partition(":")[0] for head in heads] == ["fake-hybrid, prompt 1 of 2", "fake-hybrid, prompt 2 of 2"]


def test_warm_computes_once(service: FakeService, tmp_path: Path) -> None:
    file = write(tmp_path, {"prompt": "a fresh one " * 50})
    arguments = ("cache", "warm", file, "--url", service.base_url, *key_argument("hunter2"))
    reported = "fake-attention: 600 prompt tokens, {} reused, {} computed, 599 stored\n"
    assert run_here(tmp_path, *arguments).stdout == reported.format(0, 600)
    assert run_here(tmp_path, *arguments).stdout == reported.format(599, 1)
    answer = json.loads(run_here(tmp_path, *arguments, "--json").stdout)
    assert answer["prompts"][0]["stored_tokens"] == 599


def test_warm_says_when_nothing_is_persisted(tmp_path: Path) -> None:
    with fake_service(reuses=True) as service:
        result = run_here(tmp_path, "cache", "warm", write(tmp_path, MONDAY), "--url", service.base_url)
        assert result.stdout.endswith(" computed, kept in memory only: the server has no store\n")


@pytest.mark.parametrize(
    ("request_body", "arguments", "message"),
    [
        (MONDAY, [], "cairn: an API key is required: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'; give"
                     " it in a file with --api-key-file"),
        (MONDAY, [*key_argument("hunter3")], "cairn: the API key is not valid"),
        (MONDAY, [*key_argument("hunter2"), "--model", "unheard-of"], "cairn: no model 'unheard-of' here"),
        ({"prompt": ""}, [*key_argument("hunter2")], "cairn: prompt must not be empty"),
    ],
)  # fmt: skip
def test_a_refusal_of_the_server_is_printed(
    service: FakeService, tmp_path: Path, request_body: Any, arguments: list[str], message: str
) -> None:
    result = run_here(
        tmp_path, "cache", "explain", write(tmp_path, request_body), "--url", service.base_url, *arguments
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(message)


def test_no_server_there(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken and not listened on
        port = closed.getsockname()[1]
        result = run_here(
            tmp_path,
            "cache",
            "warm",
            write(tmp_path, MONDAY),
            CAIRN_SERVER__PORT=str(port),
            HTTP_PROXY="http://[::1]:1",
        )
    assert result.returncode == 1
    assert result.stderr == (
        f"cairn: no server answers at http://127.0.0.1:{port}; start one with cairn serve, or name another with --url\n"
    )


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ("[]", 2, "is not a request: a JSON object with messages or prompt is needed"),
        ("{", 2, "is not JSON"),
        (None, 1, "cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_no_requests(tmp_path: Path, content: str | None, status: int, message: str) -> None:
    file = tmp_path / "request.json"
    if content is not None:
        file.write_text(content)
    result = run_here(tmp_path, "cache", "explain", str(file))
    assert result.returncode == status
    assert result.stderr.startswith(f"cairn: {file} {message}")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://[::1", "ftp://127.0.0.1"])
def test_addresses_that_are_none(tmp_path: Path, url: str) -> None:
    result = run_here(tmp_path, "cache", "explain", write(tmp_path, MONDAY), "--url", url)
    assert result.returncode == 2
    assert result.stderr.startswith(f"cairn: {url} is not a valid server URL: ")
