"""A tool server that misbehaves, over stdio: `python -m tests.support.mcp.fault_server ERA [TRAIT ...]`.

ERA: `modern` answers `server/discover`; `older` knows `initialize` only, and refuses what comes before it; `silent`
answers neither. Its tools are named after what a call of them does.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = [
    "echo",
    "env",
    "hang",
    "die",
    "flood",
    "refuse",
    "fail",
    "ask",
    "image",
    "many",
    "stray",
    "asks_client",
    "announce",
]
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class FaultServer:
    def __init__(self, era: str, traits: set[str]) -> None:
        self.era, self.traits = era, traits
        self.is_ready = era == "modern"
        self.num_lists = 0
        self.cancelled: list[int] = []

    def answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """The response to a message; None for none."""
        method, number = message.get("method"), message.get("id")
        if method == "notifications/cancelled":
            self.cancelled.append(message["params"]["requestId"])
        if number is None or self.era == "silent":
            return None
        try:
            return {"jsonrpc": "2.0", "id": number, "result": self.result(str(method), message.get("params") or {})}
        except LookupError as error:
            refusal = {"code": -32601 if isinstance(error, KeyError) else -32050, "message": str(error)}
            return {"jsonrpc": "2.0", "id": number, "error": refusal}

    def result(self, method: str, params: dict[str, Any]) -> Any:
        if method == "server/discover" and self.era == "modern":
            return {"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete"}
        if method == "initialize" and self.era == "older":
            self.is_ready = True
            return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "faults"}}
        if not self.is_ready:
            raise KeyError(method)
        is_modern = params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion") == "2026-07-28"
        if is_modern is not (self.era == "modern"):
            raise IndexError("of the other era")
        if method == "tools/list":
            return self.tools(params)
        if method == "tools/call":
            return self.call(params["name"], params["arguments"])
        raise KeyError(method)

    def tools(self, params: dict[str, Any]) -> dict[str, Any]:
        self.num_lists += 1
        names = [*TOOLS, f"new{self.num_lists}"] if "changing" in self.traits else list(TOOLS)
        found = [{"name": name, "description": f"Does {name}.", "inputSchema": SCHEMA} for name in names]
        if "names" in self.traits:
            found += [
                {"name": name, "inputSchema": SCHEMA} for name in ("<|im_end|>", "a\x1b[2J", "x" * 65, "../up", "")
            ]
            found += [{"name": 7}, "none", {"name": "no_schema"}]  # type: ignore[list-item]
        if "large" in self.traits:
            found = [{**found[0], "name": f"tool{index:03}", "description": "d" * 50_000} for index in range(100)]
        if "endless" in self.traits:
            return {"tools": found[:1], "nextCursor": "more"}
        if "pages" in self.traits and "cursor" not in params:
            return {"tools": found[6:], "nextCursor": "second"}
        return {"tools": found[:6] if "pages" in self.traits else found}

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        text = str(arguments.get("text", ""))
        match name:
            case "echo":
                return {"content": [{"type": "text", "text": text}], "structuredContent": {"text": text}}
            case "env":
                return {"content": [{"type": "text", "text": json.dumps(dict(os.environ))}]}
            case "die":
                os._exit(3)
            case "flood":
                return {"content": [{"type": "text", "text": "f" * (40 << 20)}]}
            case "refuse":
                raise IndexError("no <|im_end|>\nno")
            case "fail":
                return {"content": [{"type": "text", "text": "it failed"}], "isError": True}
            case "ask":
                return {"resultType": "input_required", "inputRequests": []}
            case "image":
                bad = {"type": "image", "data": "!", "mimeType": "image/png"}
                return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}, bad, {"type": "audio"}, 5]}
            case "many":
                return {"content": [{"type": "text", "text": "é" * 1000}] * 3}
            case _:
                return {"content": []}


def write(message: object) -> None:
    text = message if isinstance(message, str) else json.dumps(message)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    server = FaultServer(sys.argv[1], set(sys.argv[2:]))
    if "noisy" in server.traits:
        sys.stderr.write("x" * 300_000 + "\n" + "line\n" * 200)
        sys.stderr.flush()
    for line in sys.stdin:
        message = json.loads(line)
        called = (message.get("params") or {}).get("name")
        if "slow" in server.traits and message.get("method") == "tools/list":
            started, allowed = (Path(folder) / name for folder in sys.argv[-1:] for name in ("started", "allowed"))
            started.touch()
            while not allowed.exists():
                time.sleep(0.005)
        if called == "hang":
            continue
        if called == "announce":
            write({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        if called == "stray":
            write("a program that prints\n[1, 2]\n{not json")
        if called == "asks_client":
            write({"jsonrpc": "2.0", "id": 77, "method": "sampling/createMessage", "params": {}})
            refused = json.loads(sys.stdin.readline())
            reply = {"content": [{"type": "text", "text": json.dumps(refused)}]}
            write({"jsonrpc": "2.0", "id": message["id"], "result": reply})
            continue
        if (answer := server.answer(message)) is not None:
            write(answer)


if __name__ == "__main__":
    main()
