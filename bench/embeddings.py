"""Vectors over HTTP beside the bare passes that compute them, and a chat's stream beside a flood of them.

    python -m bench.common.as_served bench.embeddings [--texts 48] [--words 90] [--rounds 5]

The model is cairn-demo as an embedder, in float32 on a CPU. The bare side is mlx-lm's network in this process, on the
same batches of token ids and without a cache, pooled by the last token; rounds alternate with the server's, which also
tokenizes, plans, and encodes its answer.
"""

import argparse
import json
import statistics
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

from adapters.huggingface.model_folder import embedded_folder
from bench.common.servers import ServerProcess
from bench.http_client import measure
from domain.ids import ModelId

WORDS = Path(__file__).parents[1] / "training" / "text" / "words.json"
CHAT, EMBEDDER = "cairn-demo", "bench/embedder"
BUDGET = 512
"""Padded tokens of a pass on a CPU."""


def embedder(folder: Path) -> Path:
    """cairn-demo's folder as a model of sentence-transformers."""
    source = embedded_folder(ModelId(CHAT))
    assert source is not None
    copytree(source, folder)
    modules = [{"idx": 0, "path": "", "type": "Transformer"}, {"idx": 1, "path": "1_Pooling", "type": "Pooling"}]
    (folder / "modules.json").write_text(json.dumps([*modules, {"idx": 2, "path": "2_Normalize", "type": "Normalize"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return folder


def bare_batches(ids: list[list[int]]) -> list[list[list[int]]]:
    """The rows of each pass, as the server packs them."""
    batches: list[list[list[int]]] = []
    for row in sorted(ids, key=len, reverse=True):
        if not batches or (len(batches[-1]) + 1) * len(batches[-1][0]) > BUDGET:
            batches.append([])
        batches[-1].append(row)
    return batches


def compute(network: Any, batches: list[list[list[int]]]) -> float:
    """Seconds for all passes alone."""
    began_s = time.perf_counter()
    for rows in batches:
        width = len(rows[0])
        hidden = network.model(mx.array([row + [0] * (width - len(row)) for row in rows]))
        ends = mx.array([[[len(row) - 1]] for row in rows])
        last = mx.take_along_axis(hidden, ends, axis=1)[:, 0]
        mx.eval(last / mx.linalg.norm(last, axis=-1, keepdims=True))
    return time.perf_counter() - began_s


def ask(client: httpx.Client, texts: list[str]) -> float:
    """Seconds for all texts in one request."""
    began_s = time.perf_counter()
    body = {"model": EMBEDDER, "input": texts, "encoding_format": "base64"}
    answer = client.post("/v1/embeddings", json=body).raise_for_status().json()
    vectors = [np.frombuffer(b64decode(one["embedding"]), dtype="<f4") for one in answer["data"]]
    assert len(vectors) == len(texts)
    return time.perf_counter() - began_s


def stream_rate(url: str) -> float:
    """Tokens a second of one chat's stream."""
    body = {"model": CHAT, "prompt": "Hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
    (line,) = measure(url, [{"path": "/v1/completions", "body": body}])
    return (len(line.token_s) - 1) / (line.token_s[-1] - line.token_s[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--words", type=int, default=90, help="of a text on average")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    random, words = Random(3), json.loads(WORDS.read_text())
    lengths = [options.words * (1 + 2 * random.randrange(5)) // 5 for _ in range(options.texts)]
    texts = [" ".join(random.choices(words, k=max(1, length))) for length in lengths]
    with TemporaryDirectory() as scratch, ThreadPoolExecutor(1) as flood:
        folder = embedder(Path(scratch) / EMBEDDER)
        arguments = ["interfaces.cli", "serve", CHAT, "--model-dir", scratch, "--store", "off"]
        with ServerProcess(arguments, "/health/ready", Path(scratch) / "log") as server:
            client = httpx.Client(base_url=server.url, timeout=600)
            tokens = [{"model": EMBEDDER, "prompt": text} for text in texts]
            ids = [client.post("/tokenize", json=body).raise_for_status().json()["tokens"] for body in tokens]
            batches, num_tokens, network = bare_batches(ids), sum(map(len, ids)), load_model(folder)[0]
            network.set_dtype(mx.float32)  # as the server does on a CPU
            rounds = range(options.rounds + 1)
            pairs = [(compute(network, batches), ask(client, texts)) for _ in rounds][1:]  # the first warms up
            bare_s, http_s = (statistics.median(side) for side in zip(*pairs, strict=True))
            alone = stream_rate(server.url)
            going = flood.submit(lambda: [ask(client, texts) for _ in range(3)])
            beside = stream_rate(server.url)
            assert not going.done(), "the flood ended first: more --texts"
    ratio = statistics.median(one / other for one, other in pairs)
    print(f"{num_tokens} tokens: bare {num_tokens / bare_s:.0f} a second, HTTP {num_tokens / http_s:.0f}: {ratio:.3f}")
    print(f"a stream: {alone:.1f} tokens a second, beside a flood {beside:.1f}: {beside / alone:.3f}")


if __name__ == "__main__":
    main()
