"""A BLAS shared library: where one may be found, and whether it can be trusted with MLX's matrix products.

MLX calls the C interface with 32-bit integers. A library built for 64-bit integers may have the same names and then
computes nothing or crashes, so a library is asked what it is, and made to compute, before it is used.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FLOATS = ctypes.c_float * 4
_ROW_MAJOR, _NO_TRANSPOSE = 101, 111

_TWO_OR_NEGATIVE = 2 - 2**63
"""2 to a callee that reads 32 bits, a negative (hence empty) length to one that reads 64."""


class UnusableLibrary(Exception):
    """Not a library to give to MLX; the message says why."""


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """`version` is empty for a BLAS that is not OpenBLAS, and `num_threads` then 0 (unknown). `build`: all that it says
    of itself, the kind of processor it computes for included; empty likewise."""

    path: str
    version: str
    num_threads: int
    build: str = ""


def candidates(environ: Mapping[str, str]) -> Iterator[str]:
    """Where distributions put an OpenBLAS with 32-bit integers, best variant first; names only the linker finds last.

    Threads of its own before OpenMP (which competes with other OpenMP users in the process) before serial.
    """
    machine = platform.machine()
    for prefix in (environ.get("CONDA_PREFIX"), sys.base_prefix):
        if prefix:
            yield f"{prefix}/lib/libopenblas.so.0"
    for variant in ("pthread", "openmp", "serial"):  # Debian, Ubuntu and what descends from them
        yield f"/usr/lib/{machine}-linux-gnu/openblas-{variant}/libopenblas.so.0"
    for name in ("openblasp", "openblaso", "openblas"):  # Fedora and what descends from it; openSUSE has the last
        yield f"/usr/lib64/lib{name}.so.0"
    yield "/usr/lib/libopenblas.so.0"  # Arch
    yield "libopenblasp.so.0"
    yield "libopenblas.so.0"


def open_library(path: str) -> ctypes.CDLL:
    """Load privately: symbols are not offered to anyone yet. Raises UnusableLibrary."""
    if os.path.isabs(path) and not os.path.exists(path):
        raise UnusableLibrary("there is no such file")
    try:
        return ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise UnusableLibrary(str(error)) from error


def check_library(library: ctypes.CDLL) -> None:
    """Raises UnusableLibrary unless its products are right and its integers have 32 bits."""
    if not hasattr(library, "cblas_sgemm") or not hasattr(library, "cblas_sdot"):
        raise UnusableLibrary("it has no C interface (cblas_sgemm, cblas_sdot)")
    if "USE64BITINT" in _configuration(library) or not _has_32_bit_integers(library):
        raise UnusableLibrary("it is built for 64-bit integers; MLX calls it with 32-bit ones")
    if not _multiplies(library):
        raise UnusableLibrary("it answers a 2x2 product wrongly")


def describe_library(library: ctypes.CDLL) -> LibraryFacts:
    words = _configuration(library).split()
    version = " ".join(words[:2]) if words[:1] == ["OpenBLAS"] else ""
    num_threads = int(library.openblas_get_num_threads()) if hasattr(library, "openblas_get_num_threads") else 0
    return LibraryFacts(path_of(library), version, num_threads, " ".join(words))


def path_of(library: ctypes.CDLL) -> str:
    """The file that products come from: that of `cblas_sgemm`, or of what a library says that it forwards to."""

    class Location(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    found = Location()
    locate = ctypes.CDLL(None).dladdr
    locate.argtypes = (ctypes.c_void_p, ctypes.POINTER(Location))
    if hasattr(library, "cblas_sgemm_forwards_to"):
        address = ctypes.c_void_p.in_dll(library, "cblas_sgemm_forwards_to")
    else:
        address = ctypes.cast(library.cblas_sgemm, ctypes.c_void_p)
    return os.path.realpath(os.fsdecode(found.file)) if locate(address, ctypes.byref(found)) and found.file else ""


def _configuration(library: ctypes.CDLL) -> str:
    if not hasattr(library, "openblas_get_config"):
        return ""
    read = library.openblas_get_config
    read.restype = ctypes.c_char_p
    return (read() or b"").decode(errors="replace")


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
