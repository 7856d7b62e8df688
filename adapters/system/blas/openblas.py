"""An OpenBLAS for MLX on a Linux CPU, where its wheel brings only the reference BLAS: the system's, or else numpy's.

Measured on the embedded 11 M model: prefill 10 times and decode 1.5 times as fast in float32; other dtypes do not use
BLAS. It works because the dynamic linker resolves MLX's `cblas_sgemm` in the global scope first: whatever is there
when MLX is first imported wins, exactly as with LD_PRELOAD. So `load_blas` must run before that import.

`CAIRN_BLAS` names a library file (or soname) to use instead of searching, or `off`.
"""

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from adapters.system.blas.library import (
    UnusableLibrary,
    candidates,
    check_library,
    describe_library,
    open_library,
)
from adapters.system.blas.numpy_wheel import forwarding_library
from adapters.system.machine import usable_cpus

MAX_THREADS = 8
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class BlasReport:
    """What MLX's float32 products run on.

    `is_active`: a BLAS of ours is in place, at `path`; `version` is empty if it is no OpenBLAS, `num_threads` 0 if it
    does not say. `note`: why there is none, or what was passed over. `remedy`: the command that would help, if any.
    `is_needed`: False where MLX does not use BLAS at all (macOS, CUDA). `build`: as in LibraryFacts.
    """

    is_active: bool
    path: str = ""
    version: str = ""
    num_threads: int = 0
    note: str = ""
    remedy: str = ""
    is_needed: bool = True
    build: str = ""

    @property
    def identity(self) -> str:
        """Another text for whatever may round differently: version, build, kind of processor, number of threads; the
        file's name where the library does not say. Empty with MLX's own."""
        if not self.is_active:
            return ""
        return f"{self.build or Path(self.path).name}, threads {self.num_threads}"

    def describe(self) -> str:
        """One line for people."""
        if not self.is_active:
            return f"none: {self.note}" if self.is_needed else self.note
        threads = f", {self.num_threads} thread{'s' * (self.num_threads > 1)}" if self.num_threads else ""
        return f"{self.version or 'BLAS'}{threads} ({self.path})"


_found_nothing: dict[str, BlasReport] = {}
"""What was said when none was to be had, by what was asked for: banner and `doctor` ask again, after MLX was imported,
and the remedy is still the same."""


def load_blas(environ: MutableMapping[str, str] = os.environ, search: Iterable[str] | None = None) -> BlasReport:
    """Put a BLAS in place for the MLX import that follows. Never raises; repeating it reports the same.

    `search`: libraries to try instead of the known places and numpy's. Main thread, before any other thread uses BLAS.
    """
    if sys.platform != "linux":
        return BlasReport(False, note="macOS: MLX uses Metal and Accelerate", is_needed=False)
    if _has_cuda_backend():
        return BlasReport(False, note="CUDA: MLX brings its own libraries", is_needed=False)
    wanted = environ.get("CAIRN_BLAS", "").strip()
    if wanted.lower() in {"off", "none", "0"}:
        return BlasReport(False, note=f"switched off by CAIRN_BLAS={wanted}")
    everyone = ctypes.CDLL(None)
    if hasattr(everyone, "cblas_sgemm"):
        facts = describe_library(everyone)
        return BlasReport(
            True, facts.path, facts.version, facts.num_threads, note="was loaded already", build=facts.build
        )
    if "mlx.core" in sys.modules:
        late = BlasReport(False, note="MLX was imported first and keeps the BLAS it found then")
        return _found_nothing.get(wanted, late)
    num_threads = _choose_threads(environ)
    if wanted or search is not None:
        report = _load_first([wanted] if wanted else search or (), is_named=bool(wanted))
    else:
        report = _load_first(candidates(environ), num_forwarded=num_threads)
    if search is None and not report.is_active:
        _found_nothing[wanted] = report
    return report


def choose_num_threads(num_cpus: int) -> int:
    """One processor is left to HTTP and tokenizing: OpenBLAS threads spin, and a late one holds up all others.

    On 2 processors a second thread gains 0 to 15 % of prefill on an idle machine and costs up to half on a busy one.
    On 16, the embedded model prefills 532, 719, 858, 912 and 886 tokens/s with 1, 2, 4, 8 and 15: hence MAX_THREADS.
    """
    return max(1, min(num_cpus - 1, MAX_THREADS))


def _load_first(paths: Iterable[str], *, is_named: bool = False, num_forwarded: int = 0) -> BlasReport:
    """`is_named`: somebody asked for it, and is told as well that it is not there. `num_forwarded`: threads of numpy's,
    which is the last; 0: it is not tried."""
    refused: list[str] = []
    for path in paths:
        try:
            return _in_place(path, refused)
        except UnusableLibrary as error:
            if is_named or Path(path).exists():
                refused.append(f"{path}: {error}")
    if num_forwarded:
        try:
            with forwarding_library(num_forwarded) as path:
                return _in_place(path, refused)
        except (UnusableLibrary, OSError) as error:
            refused.append(str(error))
    note = "; ".join(refused) or "no OpenBLAS found"
    return BlasReport(False, note=f"{note}; float32 prefill is about 10 times slower", remedy=remedy_for())


def _in_place(path: str, refused: Sequence[str]) -> BlasReport:
    """Raises UnusableLibrary."""
    library = open_library(path)
    check_library(library)
    ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOW)  # the same handle, now open to all
    facts = describe_library(library)
    return BlasReport(True, facts.path, facts.version, facts.num_threads, "; ".join(refused), build=facts.build)


def _choose_threads(environ: MutableMapping[str, str]) -> int:
    """How many there are to be: what the user says, in OpenBLAS' own order, or what is best here."""
    # OpenBLAS reads this once, while it is loaded; numpy's own copy follows it too.
    said = next((value for name in _THREAD_VARIABLES if (value := environ.get(name, "").strip())), "")
    if not said:
        said = environ["OPENBLAS_NUM_THREADS"] = str(choose_num_threads(usable_cpus()))
    return int(said) if said.isdecimal() and int(said) else choose_num_threads(usable_cpus())


def _has_cuda_backend() -> bool:
    for name in ("mlx-cuda-12", "mlx-cuda-13"):
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return True
    return False


def remedy_for(os_release: Path = Path("/etc/os-release")) -> str:
    """The command that installs OpenBLAS on this distribution."""
    families = _distribution_families(os_release)
    for family, command in (
        ("debian", "apt-get install libopenblas0-pthread"),
        ("ubuntu", "apt-get install libopenblas0-pthread"),
        ("fedora", "dnf install openblas-threads"),
        ("rhel", "dnf install openblas-threads"),
        ("arch", "pacman -S openblas"),
        ("suse", "zypper install libopenblas_pthreads0"),
    ):
        if family in families:
            return command
    return "install OpenBLAS, or name its file in CAIRN_BLAS"


def _distribution_families(os_release: Path) -> frozenset[str]:
    try:
        pairs = (line.partition("=") for line in os_release.read_text(encoding="utf-8").splitlines())
        fields: Mapping[str, str] = {key: value.strip("\"'") for key, _, value in pairs}
    except OSError:
        return frozenset()
    return frozenset(f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".split())
