"""Another bench with MLX as a server has it: BLAS, heap and environment are prepared before MLX is imported.

python -m bench.common.as_served MODULE [ARGUMENT ...]
"""

import runpy
import sys

from interfaces.composition.backends import import_backend


def main() -> None:
    del sys.argv[0]  # `python -m MODULE` from here on
    if not sys.argv:
        raise SystemExit("which module?")
    import_backend("mlx")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
