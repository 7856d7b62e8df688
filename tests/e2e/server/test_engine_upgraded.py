"""An engine that is lost after the package was upgraded: the server ends, and its supervisor starts the new version."""

import os
import re
import signal
from pathlib import Path

import httpx

from tests.support.processes.cli_process import PATIENCE_S, cairn_process


def test_a_server_that_was_upgraded_ends_with_a_clear_message(tmp_path: Path) -> None:
    arguments = ("serve", "--port", "0", "--backend", "fake")
    with cairn_process(tmp_path, arguments, module="tests.support.engines.upgraded_server") as cairn:
        launched = re.search(r"process (\d+)", cairn.read_until("the engine runs in process"))
        served = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
        assert launched
        assert served
        body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 3000}
        url = f"{served[1]}/v1/chat/completions"
        with httpx.stream("POST", url, json={**body, "ignore_eos": True}, timeout=PATIENCE_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(int(launched[1]), signal.SIGKILL)
            told = list(lines)
        assert any("cairn was upgraded while it was running; restart the server" in line for line in told)
        assert cairn.wait() == 1
        cairn.read_to_end()
        assert cairn.seen[-1] == "cairn: cairn was upgraded while it was running; restart the server\n"
