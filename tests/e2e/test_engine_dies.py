"""`cairn serve --engine process`, whose engine is killed in the middle of an answer: the client sees a pause."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.test_cli_serve import SERVE, base_url
from tests.support.cli_process import PATIENCE_S, cairn_process

BODY: dict[str, Any] = {"prompt": "What goes on?", "max_tokens": 400, "ignore_eos": True, "temperature": 1, "seed": 4}


def test_an_answer_goes_on_when_its_engine_was_killed(tmp_path: Path) -> None:
    with cairn_process(tmp_path, (*SERVE, "--engine", "process")) as cairn:
        found = re.search(r"the engine runs in process (\d+)", cairn.read_until("the engine runs in process"))
        assert found
        url = f"{base_url(cairn)}/v1/completions"
        assert "a process of its own" in cairn.read_until("  engine ")
        answer = httpx.post(url, json=BODY, timeout=PATIENCE_S).json()
        parts, is_killed = list[str](), False
        with httpx.stream("POST", url, json={**BODY, "stream": True}, timeout=PATIENCE_S) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                if not is_killed:
                    os.kill(int(found[1]), signal.SIGKILL)
                    is_killed = True
                parts += [choice["text"] for choice in json.loads(line[6:])["choices"]]
        assert "".join(parts) == answer["choices"][0]["text"]
        assert "killed by SIGKILL" in cairn.read_until("another engine took over")
        cairn.send(signal.SIGTERM)
        assert cairn.wait() == 0
