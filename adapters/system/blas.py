"""An OpenBLAS for MLX on a Linux CPU, the system's or numpy's, because MLX's wheel brings only the reference BLAS.

Measured on the embedded 11 M model: prefill 10 times and decode 1.5 times as fast in float32; other dtypes do not use
BLAS. The dynamic linker resolves MLX's `cblas_sgemm` in the global scope first: the library that is loaded when MLX is
first imported is used, as with LD_PRELOAD. So `load_blas` must run before that import.

MLX calls the C interface with 32-bit integers. A library built for 64-bit integers may have the same names and then
computes nothing or crashes, so a library must multiply correctly before it is used. numpy's wheel bundles an OpenBLAS
with 64-bit integers under names of its own. Forwarding functions, compiled at each start as MLX compiles its fused
kernels, give it the interface of a system's library; the compiled file is deleted at once and never reused.

`CAIRN_BLAS` names a library (a file, or a name that the linker finds) to use instead of searching, or `off`.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from adapters.system.machine import usable_cpus

MAX_THREADS = 8
SYSTEM_LIBRARIES = ("libopenblasp.so.0", "libopenblas.so.0")
"""Names of a system's OpenBLAS with 32-bit integers: with threads of its own (Fedora), and the default variant."""
COMPILERS = ("cc", "gcc", "clang")

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_COMPILE_TIMEOUT_S = 60.0
_REMEDY = "install OpenBLAS or a C compiler, or name an OpenBLAS in CAIRN_BLAS"

_FLOATS = ctypes.c_float * 4
_ROW_MAJOR, _NO_TRANSPOSE = 101, 111
_TWO_OR_NEGATIVE = 2 - 2**63
"""2 to a function that reads 32 bits, a negative (hence empty) length to one that reads 64."""

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
static product *sgemm;
static inner_product *sdot;
static count *num_threads;

void forward_to(product *gemm, inner_product *dot, count *threads) {
    sgemm = gemm;
    sdot = dot;
    num_threads = threads;
}
void cblas_sgemm(int order, int transposed_a, int transposed_b, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    sgemm(order, transposed_a, transposed_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
float cblas_sdot(int n, const float *x, int x_step, const float *y, int y_step) {
    return sdot(n, x, x_step, y, y_step);
}
int openblas_get_num_threads(void) { return num_threads(); }
const char *openblas_get_config(void) { return "CONFIGURATION"; }
"""


class UnusableLibrary(Exception):
    """A library that MLX cannot use; the message says why."""


@dataclass(frozen=True, slots=True)
class BlasReport:
    """The BLAS of MLX's float32 products.

    `is_active`: a library is in place, at `path` (empty if it was preloaded). `build`: the library's description of
    itself, its version and the kind of processor included; empty if it is not OpenBLAS. `num_threads`: 0 if unknown.
    `note`: why there is none, or which libraries were rejected. `remedy`: what the user can do. `is_needed`: False if
    MLX does not use BLAS at all (macOS, CUDA).
    """

    is_active: bool
    path: str = ""
    build: str = ""
    num_threads: int = 0
    note: str = ""
    remedy: str = ""
    is_needed: bool = True

    @property
    def version(self) -> str:
        """`OpenBLAS` and its version; empty for another library."""
        return " ".join(self.build.split()[:2]) if self.build.startswith("OpenBLAS ") else ""

    @property
    def identity(self) -> str:
        """A text that differs between libraries that may round differently: build, processor and number of threads, or
        the file's name if the library has no description. Empty for MLX's own."""
        return f"{self.build or Path(self.path).name}, threads {self.num_threads}" if self.is_active else ""

    def describe(self) -> str:
        """Returns a summary in one line."""
        if not self.is_active:
            return f"none: {self.note}" if self.is_needed else self.note
        threads = f", {self.num_threads} thread{'s' * (self.num_threads > 1)}" if self.num_threads else ""
        return f"{self.version or 'BLAS'}{threads} ({self.path or 'preloaded'})"


_reports: dict[str, BlasReport] = {}
"""The reports so far by CAIRN_BLAS, for callers after the import of MLX."""


def load_blas(environ: MutableMapping[str, str] = os.environ) -> BlasReport:
    """Loads a BLAS for the MLX import that follows. Never raises; repeated calls return the same report. Main thread,
    before any other thread uses BLAS."""
    if sys.platform != "linux":
        return BlasReport(False, note="macOS: MLX uses Metal and Accelerate", is_needed=False)
    if _has_cuda_backend():
        return BlasReport(False, note="CUDA: MLX brings its own libraries", is_needed=False)
    wanted = environ.get("CAIRN_BLAS", "").strip()
    if wanted.lower() in {"off", "none", "0"}:
        return BlasReport(False, note=f"switched off by CAIRN_BLAS={wanted}")
    if wanted not in _reports:
        process = ctypes.CDLL(None)
        if hasattr(process, "cblas_sgemm"):
            _reports[wanted] = _report_of(process, "")
        elif "mlx.core" in sys.modules:
            return BlasReport(False, note="MLX was imported before load_blas and uses its own BLAS")
        else:
            _reports[wanted] = _load(wanted, _choose_threads(environ))
    return _reports[wanted]


def choose_num_threads(num_cpus: int) -> int:
    """The best number of threads: one processor is left for HTTP and tokenizing, since OpenBLAS threads spin and wait
    for the slowest.

    On 2 processors a second thread gains 0 to 15 % of prefill on an idle machine and costs up to half on a busy one. On
    16, the embedded model prefills 532, 719, 858, 912 and 886 tokens/s with 1, 2, 4, 8 and 15: hence MAX_THREADS.
    """
    return max(1, min(num_cpus - 1, MAX_THREADS))


def _load(wanted: str, num_threads: int) -> BlasReport:
    rejected: list[str] = []
    for path in (wanted,) if wanted else SYSTEM_LIBRARIES:
        try:
            return _in_place(path)
        except UnusableLibrary as error:
            if wanted or "cannot open" not in str(error):
                rejected.append(f"{path}: {error}")
    if not wanted:
        try:
            with forwarding_library(num_threads) as (path, original):
                return _in_place(path, original, "; ".join(rejected))
        except (UnusableLibrary, OSError) as error:
            rejected.append(f"numpy's OpenBLAS: {error}")
    note = f"{'; '.join(rejected)}; float32 prefill is about 10 times slower"
    return BlasReport(False, note=note, remedy=_REMEDY)


def _in_place(path: str, original: str = "", note: str = "") -> BlasReport:
    """`original`: the file that a forwarding library calls. Raises UnusableLibrary."""
    check_library(open_library(path))
    return _report_of(ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOW), original or path, note)


def _report_of(library: ctypes.CDLL, path: str, note: str = "") -> BlasReport:
    has_threads = hasattr(library, "openblas_get_num_threads")
    num_threads = int(library.openblas_get_num_threads()) if has_threads else 0
    build = _configuration(library, "openblas_get_config")
    return BlasReport(True, path, build, num_threads, note)


def _choose_threads(environ: MutableMapping[str, str]) -> int:
    """The user's number, by OpenBLAS' variables in its own order, or the best one, which OpenBLAS then reads too."""
    given = next((value for name in _THREAD_VARIABLES if (value := environ.get(name, "").strip())), "")
    if not given:
        given = environ["OPENBLAS_NUM_THREADS"] = str(choose_num_threads(usable_cpus()))
    return int(given) if given.isdecimal() and int(given) else choose_num_threads(usable_cpus())


def _has_cuda_backend() -> bool:
    for name in ("mlx-cuda-12", "mlx-cuda-13"):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return True
    return False


# ---- a library before it is trusted --------------------------------------------------------------------------------


def open_library(path: str) -> ctypes.CDLL:
    """Loads a library without offering its symbols to others. Raises UnusableLibrary."""
    try:
        return ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise UnusableLibrary(str(error)) from error


def check_library(library: ctypes.CDLL) -> None:
    """Checks a library's products and its integers of 32 bits. Raises UnusableLibrary if one is wrong."""
    if not hasattr(library, "cblas_sgemm") or not hasattr(library, "cblas_sdot"):
        raise UnusableLibrary("it has no C interface (cblas_sgemm, cblas_sdot)")
    is_wide = _SIXTY_FOUR_BITS in _configuration(library, "openblas_get_config")
    if is_wide or not _has_32_bit_integers(library):
        raise UnusableLibrary("it is built for 64-bit integers, but MLX calls it with 32-bit ones")
    if not _multiplies(library):
        raise UnusableLibrary("its result for a 2x2 product is wrong")


def _configuration(library: ctypes.CDLL, function: str) -> str:
    """The library's description of itself; empty if it has none."""
    if not hasattr(library, function):
        return ""
    read = getattr(library, function)
    read.restype = ctypes.c_char_p
    return " ".join((read() or b"").decode(errors="replace").split())


def _has_32_bit_integers(library: ctypes.CDLL) -> bool:
    dot = library.cblas_sdot
    dot.restype = ctypes.c_float
    dot.argtypes = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    return bool(dot(_TWO_OR_NEGATIVE, _FLOATS(1, 2), 1, _FLOATS(3, 4), 1) == 11.0)


def _multiplies(library: ctypes.CDLL) -> bool:
    product = _FLOATS()
    size, scale, matrix = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    multiply = library.cblas_sgemm
    multiply.restype = None
    multiply.argtypes = (*(size,) * 6, scale, matrix, size, matrix, size, scale, matrix, size)
    left, right = _FLOATS(1, 2, 3, 4), _FLOATS(5, 6, 7, 8)
    multiply(_ROW_MAJOR, _NO_TRANSPOSE, _NO_TRANSPOSE, 2, 2, 2, 1.0, left, 2, right, 2, 0.0, product, 2)
    return list(product) == [19.0, 22.0, 43.0, 50.0]


# ---- numpy's OpenBLAS ----------------------------------------------------------------------------------------------


@contextmanager
def forwarding_library(num_threads: int, package: Path | None = None) -> Generator[tuple[str, str]]:
    """The path of a library with MLX's interface, which exists for the block only, and of numpy's, to which it
    forwards.

    `num_threads`: of its products; `package`: numpy's folder, None for the one that is imported. Raises UnusableLibrary
    if numpy brings no known OpenBLAS or it cannot be compiled, OSError if there is no place for temporary files.
    """
    library, path = _numpys_library(package or _numpy_folder())
    getattr(library, _SET_THREADS)(num_threads)
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise UnusableLibrary(f"it needs a C compiler ({', '.join(COMPILERS)})")
    words = (word for word in _configuration(library, _CONFIGURATION).split() if word != _SIXTY_FOUR_BITS)
    description = "".join(c for c in " ".join(words) if c.isascii() and c.isprintable() and c not in '"\\?')
    with TemporaryDirectory(prefix="cairn-blas-") as folder:
        source, compiled = Path(folder, "forward.c"), Path(folder, "libforward.so")
        source.write_text(_SOURCE.replace("CONFIGURATION", description))
        _compile([compiler, "-shared", "-fPIC", "-O2", "-o", str(compiled), str(source)])
        addresses = (ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in _FORWARDED)
        open_library(str(compiled)).forward_to(*addresses)
        yield str(compiled), path


def _numpy_folder() -> Path:
    spec = find_spec("numpy")
    if spec is None or not spec.submodule_search_locations:
        raise UnusableLibrary("numpy is not installed")
    return Path(spec.submodule_search_locations[0])


def _numpys_library(package: Path) -> tuple[ctypes.CDLL, str]:
    for path in sorted(package.with_name("numpy.libs").glob("libscipy_openblas64_*.so*")):
        library = open_library(str(path))
        if all(hasattr(library, name) for name in (*_FORWARDED, _CONFIGURATION, _SET_THREADS)):
            return library, os.path.realpath(path)
    raise UnusableLibrary("numpy brings no OpenBLAS with the known names")


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnusableLibrary(str(error)) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise UnusableLibrary(f"{command[0]} failed: {lines[-1] if lines else done.returncode}")
