"""A model folder with float32 weights, so that every server of a comparison computes in the same type.

On a Linux CPU Cairn chooses float32 by itself, peers take what they load, and bfloat16 is several times slower there.
"""

import shutil
import subprocess
import sys
from pathlib import Path


def float32_copy(folder: Path, target: Path) -> Path:
    """Made in a process of its own: a bench may have to find a BLAS before MLX is imported."""
    subprocess.run([sys.executable, "-m", "bench.common.float32", str(folder), str(target)], check=True)
    return target


def convert(folder: Path, target: Path) -> None:
    import mlx.core as mx

    target.mkdir(parents=True)
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            weights = {name: array.astype(mx.float32) for name, array in mx.load(str(file)).items()}
            mx.save_safetensors(str(target / file.name), weights, {"format": "mlx"})
        elif file.is_file():
            shutil.copyfile(file, target / file.name)
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
