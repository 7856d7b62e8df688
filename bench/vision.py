"""Time to first token with one image of 1024 x 768 pixels, beside mlx-vlm's own server on the same model.

    python -m bench.vision --peer PYTHON [--runs 5]

`--peer`: a python with mlx-vlm and what its server declares. The model is written with random weights in the shape of
Qwen3-VL, small enough for a CPU. Both servers run on one BLAS and are asked in turn. Each request comes from a process
of its own and asks for one token: half a character is no text. `new`: a picture that the server has not seen, with a
short question. `again`: the same picture with another question. Reported are medians and the ratio to the peer's.
"""

import argparse
import base64
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.common.servers import ServerProcess, shared_blas
from bench.http_client import measure

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<|image_pad|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = {"hidden_size": 256, "num_hidden_layers": 3, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64}
ROPE = {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True}
VISION = {
    **{"depth": 3, "hidden_size": 128, "intermediate_size": 256, "num_heads": 2, "out_hidden_size": 256},
    **{"patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [0, 1]},
}
PIXELS = {"patch_size": 16, "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}
QUESTIONS = ("What is this?", "Say what you see, in a word.")


def write_model(folder: Path) -> None:
    from tests.support.mlx.vision.tiny_seers import write_seeing_folder

    text = {**TEXT, "rope_scaling": ROPE, "max_position_embeddings": 8192}
    write_seeing_folder("qwen3_vl", folder, text=text, vision=VISION, prepare=PIXELS, template=TEMPLATE)


def request(model: str, image: bytes, question: str) -> dict[str, object]:
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "stream": True}
    return {"path": "/v1/chat/completions", "body": {**body, "temperature": 0}}


def first_token_s(url: str, model: str, image: bytes, question: str) -> float:
    (timeline,) = measure(url, [request(model, image, question)])
    if timeline.status != 200:
        raise RuntimeError(f"{url}: {timeline.status} {timeline.error}")
    return timeline.end_s - timeline.sent_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="a python with mlx-vlm's server")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    blas = shared_blas()
    from tests.support.mlx.vision.tiny_seers import picture

    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "model"
        write_model(folder)
        images = [picture(seed, 1024, 768) for seed in range(given.runs + 1)]
        model = str(folder)
        servers = {
            "cairn": ServerProcess(
                ["cairn", "serve", model, "--store", "off"], "/health", Path(directory) / "cairn.log", environment=blas
            ),
            "mlx-vlm": ServerProcess(
                ["mlx_vlm.server", "--model", model],
                "/health",
                Path(directory) / "peer.log",
                python=given.peer,
                environment=blas,
            ),
        }
        found: dict[tuple[str, str], list[float]] = {(name, question): [] for name in servers for question in QUESTIONS}
        with servers["cairn"], servers["mlx-vlm"]:
            for image in images:
                for name, question in found:
                    found[name, question].append(first_token_s(servers[name].url, model, image, question))
    # The first request of a server imports and compiles.
    medians = {key: median(times[1:]) for key, times in found.items()}
    for what, question in zip(("new", "again"), QUESTIONS, strict=True):
        ours, theirs = (medians[name, question] for name in ("cairn", "mlx-vlm"))
        print(f"{what:<6} cairn {ours:.3f} s, mlx-vlm {theirs:.3f} s, ratio {ours / theirs:.2f}")
    new, again = (medians["cairn", question] for question in QUESTIONS)
    print(f"again / new, cairn: {again / new:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
