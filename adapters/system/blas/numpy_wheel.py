"""The OpenBLAS that numpy's wheel brings, under the names and with the integers that MLX calls.

numpy bundles a build of its own whose names carry a prefix and whose integers have 64 bits, so that nobody meets it by
chance. Four forwarding functions, compiled at each start as MLX compiles its fused kernels, make of it what a system's
OpenBLAS is: a Linux machine without one, and without anybody who may install one, computes as fast. numpy promises none
of those names: where they are missing, or where there is no C compiler, MLX keeps the BLAS that it brought.

Nothing is kept: a library that somebody may have written meanwhile is never loaded.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from adapters.system.blas.library import UnusableLibrary, open_library

COMPILERS = ("cc", "gcc", "clang")
_COMPILE_TIMEOUT_S = 60.0
_SIXTY_FOUR_BITS = "USE64BITINT"
_FORWARDED = ("scipy_cblas_sgemm64_", "scipy_cblas_sdot64_", "scipy_openblas_get_num_threads64_")
_CONFIGURATION = "scipy_openblas_get_config64_"
_SET_THREADS = "scipy_openblas_set_num_threads64_"

_SOURCE = """
#include <stdint.h>
typedef void product(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                     float, float *, int64_t);
typedef float inner_product(int64_t, const float *, int64_t, const float *, int64_t);
typedef int count(void);
product *cblas_sgemm_forwards_to;
static inner_product *sdot;
static count *num_threads;

void forward_to(product *sgemm, inner_product *dot, count *threads) {
    cblas_sgemm_forwards_to = sgemm;
    sdot = dot;
    num_threads = threads;
}
void cblas_sgemm(int order, int transposed_a, int transposed_b, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    cblas_sgemm_forwards_to(order, transposed_a, transposed_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
float cblas_sdot(int n, const float *x, int x_step, const float *y, int y_step) {
    return sdot(n, x, x_step, y, y_step);
}
int openblas_get_num_threads(void) { return num_threads(); }
const char *openblas_get_config(void) { return "CONFIGURATION"; }
"""


@contextmanager
def forwarding_library(num_threads: int, package: Path | None = None) -> Generator[str]:
    """The path of a library, for as long as the block lasts, that may be given to MLX after a check like any other.

    `num_threads`: for its products; numpy may have been imported before anybody chose. `package`: where numpy lies;
    None: where it is imported from. What it forwards to stays loaded in this process.
    Raises UnusableLibrary when numpy brings none known here or it cannot be compiled, OSError without a place for that.
    """
    library = _numpys_library(package or _numpy_folder())
    getattr(library, _SET_THREADS)(num_threads)
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise UnusableLibrary(f"numpy's OpenBLAS needs a C compiler ({', '.join(COMPILERS)})")
    with TemporaryDirectory(prefix="cairn-blas-") as folder:
        source, compiled = Path(folder, "forward.c"), Path(folder, "libforward.so")
        source.write_text(_SOURCE.replace("CONFIGURATION", _configuration(library)))
        _compile([compiler, "-shared", "-fPIC", "-O2", "-o", str(compiled), str(source)])
        addresses = (ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in _FORWARDED)
        open_library(str(compiled)).forward_to(*addresses)
        yield str(compiled)


def _numpy_folder() -> Path:
    spec = find_spec("numpy")
    if spec is None or not spec.submodule_search_locations:
        raise UnusableLibrary("there is no numpy")
    return Path(spec.submodule_search_locations[0])


def _numpys_library(package: Path) -> ctypes.CDLL:
    """Open to nobody else: what it needs itself could stand in the way of what MLX brings."""
    for path in sorted(package.with_name("numpy.libs").glob("libscipy_openblas64_*.so*")):
        try:
            library = open_library(str(path))
        except UnusableLibrary as error:
            raise UnusableLibrary(f"numpy's OpenBLAS: {error}") from error
        if all(hasattr(library, name) for name in (*_FORWARDED, _CONFIGURATION, _SET_THREADS)):
            return library
    raise UnusableLibrary("numpy brings no OpenBLAS known here")


def _configuration(library: ctypes.CDLL) -> str:
    """What it says of itself, but for the integers, as a C string has it."""
    read = getattr(library, _CONFIGURATION)
    read.restype = ctypes.c_char_p
    words = (read() or b"").decode("ascii", errors="replace").split()
    kept = (word for word in words if word != _SIXTY_FOUR_BITS)
    return "".join(c for c in " ".join(kept) if c.isascii() and c.isprintable() and c not in '"\\?')


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnusableLibrary(f"numpy's OpenBLAS: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise UnusableLibrary(f"numpy's OpenBLAS: {command[0]} failed: {said[-1] if said else done.returncode}")
