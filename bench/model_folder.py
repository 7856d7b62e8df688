"""A model of real shape with random weights, as a folder that any server loads: made once, shared by benches.

    python -m bench.model_folder SHAPE DIR

The tokenizer is the embedded models', so the shape's vocabulary becomes theirs; the rest is the real one. Weights are
as `bench.common.shapes` makes them, bfloat16. A folder that is there is whole, and is left as it is.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

VOCABULARY = 4096


def made(shape: str, folder: Path) -> Path:
    """By a process of its own, so that nothing here holds the device."""
    subprocess.run([sys.executable, "-m", "bench.model_folder", shape, str(folder)], check=True)
    return folder


def write(shape: str, folder: Path) -> None:
    import mlx.core as mx

    from bench.common.long_context_models import write_model
    from bench.common.shapes import build_shape

    mx.random.seed(1)
    started = time.perf_counter()
    network, config = build_shape(shape, vocab_size=VOCABULARY)
    built_s = time.perf_counter() - started
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of one that was ended
    write_model(network, config, partial)
    partial.rename(folder)
    num_bytes = (folder / "model.safetensors").stat().st_size
    print(
        f"{shape}: {num_bytes / 1e9:.2f} GB, built in {built_s:.1f} s, "
        f"written in {time.perf_counter() - started - built_s:.1f} s",
        flush=True,
    )
    mx.synchronize()
    mx.clear_streams()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.folder.exists():
        print(f"{options.folder} is there")
    else:
        options.folder.parent.mkdir(parents=True, exist_ok=True)
        write(options.shape, options.folder)


if __name__ == "__main__":
    main()
