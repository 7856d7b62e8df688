"""A fast BLAS: found, checked before it is trusted, in place before MLX, and never in the way."""

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
import pytest

from adapters.system.blas import (
    MAX_THREADS,
    BlasReport,
    UnusableLibrary,
    check_library,
    choose_num_threads,
    forwarding_library,
    load_blas,
    open_library,
)
from adapters.system.machine import usable_cpus

ROOT = Path(__file__).parents[4]
IS_LINUX = sys.platform == "linux"
NUMPY_LIBRARIES = Path(numpy.__file__).parent.with_name("numpy.libs")
NUMPYS_BLAS = next(map(str, NUMPY_LIBRARIES.glob("libscipy_openblas64_*")), "")

linux_only = pytest.mark.skipif(not IS_LINUX, reason="macOS has Accelerate")
needs_compiler = pytest.mark.skipif(not (IS_LINUX and shutil.which("cc")), reason="needs a C compiler")
needs_numpys = pytest.mark.skipif(
    not (NUMPYS_BLAS and shutil.which("cc")), reason="numpy is no wheel, or no C compiler"
)

# Every interface MLX uses, by the plainest means. INTEGER may be long; WRONG spoils products.
SOURCE = """
typedef INTEGER blas_int;
int num_products;
char *openblas_get_config(void) { return CONFIG; }
float cblas_sdot(blas_int n, const float *x, blas_int dx, const float *y, blas_int dy) {
    float sum = 0;
    for (blas_int i = 0; i < n; i++) sum += x[i * dx] * y[i * dy];
    return sum;
}
void cblas_sgemm(int order, int ta, int tb, blas_int m, blas_int n, blas_int k, float alpha, const float *a,
                 blas_int lda, const float *b, blas_int ldb, float beta, float *c, blas_int ldc) {
    num_products++;
    for (blas_int i = 0; i < m; i++)
        for (blas_int j = 0; j < n; j++) {
            float sum = WRONG;
            for (blas_int l = 0; l < k; l++) sum += a[i * lda + l] * b[l * ldb + j];
            c[i * ldc + j] = alpha * sum;
        }
}
"""


def python(code: str, **variables: str) -> list[str]:
    """Run `code` in a fresh interpreter without this process's BLAS choices; returns the lines it printed."""
    dropped = {"LD_PRELOAD", "CAIRN_BLAS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "GOTO_NUM_THREADS"}
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory):
    """Compile a small BLAS and return its path."""
    folder = tmp_path_factory.mktemp("blas")

    def compile_library(name: str, integer: str = "int", wrong: str = "0", config: str = '"Small 1.0"') -> str:
        source, library = folder / f"{name}.c", folder / f"lib{name}.so"
        source.write_text(SOURCE)
        flags = [f"-DINTEGER={integer}", f"-DWRONG={wrong}", f"-DCONFIG={config}"]
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", *flags, "-o", library, source], check=True, timeout=60)
        return str(library)

    return compile_library


@needs_compiler
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"integer": "long"}, "64-bit integers"),
        ({"config": '"OpenBLAS 9.9 USE64BITINT"'}, "64-bit integers"),
        ({"wrong": "1"}, "2x2 product is wrong"),
    ],
)
def test_library_that_would_give_wrong_answers_is_refused(build, options: dict[str, str], reason: str):
    library = open_library(build(f"bad{len(reason)}{'_'.join(options)}", **options))
    with pytest.raises(UnusableLibrary, match=reason):
        check_library(library)


@needs_compiler
def test_sound_library_is_accepted(build):
    check_library(open_library(build("sound")))


@linux_only
@pytest.mark.parametrize(("path", "reason"), [("/nowhere/libblas.so", "No such file"), ("libc.so.6", "C interface")])
def test_what_is_no_blas_is_refused(path: str, reason: str):
    with pytest.raises(UnusableLibrary, match=reason):
        check_library(open_library(path))


@needs_compiler
def test_named_library_is_the_only_one_tried(build):
    named = build("named", wrong="1")
    (line,) = python("from adapters.system.blas import load_blas; print(load_blas())", CAIRN_BLAS=named)
    assert "is_active=False" in line
    assert "2x2 product is wrong" in line


@linux_only
def test_can_be_switched_off():
    (line,) = python("from adapters.system.blas import load_blas; print(load_blas().describe())", CAIRN_BLAS="off")
    assert line == "none: switched off by CAIRN_BLAS=off"


@linux_only
def test_says_so_when_mlx_came_first():
    pytest.importorskip("mlx.core")
    (line,) = python("import mlx.core; from adapters.system.blas import load_blas; print(load_blas().describe())")
    assert "MLX was imported before" in line


@linux_only
def test_absence_is_reported_the_same_once_mlx_was_imported():
    pytest.importorskip("mlx.core")
    first, again = python(
        """
        from adapters.system.blas import load_blas
        print(load_blas().describe())
        import mlx.core
        print(load_blas().describe())
        """,
        CAIRN_BLAS="/nowhere/libblas.so",
    )
    assert again == first
    assert "10 times slower" in first
    assert "/nowhere/libblas.so: " in first


@needs_compiler
def test_mlx_multiplies_with_the_library_that_was_loaded(build):
    pytest.importorskip("mlx.core")
    code = f"""
        from adapters.system.blas import load_blas
        assert load_blas({{"CAIRN_BLAS": {build("counting")!r}}}).is_active
        import ctypes, mlx.core as mx
        count = ctypes.c_int.in_dll(ctypes.CDLL({build("counting")!r}), "num_products")
        before = count.value
        product = mx.ones((64, 32)) @ mx.ones((32, 16))
        print(product.max().item(), count.value > before)
        """
    assert python(code) == ["32.0 True"]


@linux_only
@needs_numpys
def test_without_a_system_one_mlx_multiplies_with_numpys():
    pytest.importorskip("mlx.core")
    code = """
        import os
        from adapters.system import blas
        blas.SYSTEM_LIBRARIES = ("/nowhere/libopenblas.so.0",)
        report = blas.load_blas()
        import mlx.core as mx, numpy as np
        left, right = np.random.default_rng(1).random((2, 257, 257), dtype=np.float32)
        product = np.array(mx.array(left, mx.float32) @ mx.array(right))
        print(report.is_active, report.path, report.version.startswith("OpenBLAS"), "USE64BITINT" in report.identity)
        print(np.abs(product - left @ right).max() < 1e-3, blas.load_blas().path)
        print(os.listdir(os.environ["TMPDIR"]))
        """
    with TemporaryDirectory() as scratch:
        lines = python(code, TMPDIR=scratch)
    numpys = os.path.realpath(NUMPYS_BLAS)
    assert lines == [f"True {numpys} True False", f"True {numpys}", "[]"]


@linux_only
@needs_numpys
def test_numpys_computes_with_the_users_number_of_threads_or_the_best_also_if_it_was_imported_first():
    code = """
        import numpy
        from adapters.system import blas
        blas.SYSTEM_LIBRARIES = ()
        print(blas.load_blas().num_threads)
        """
    assert python(code) == [str(choose_num_threads(usable_cpus()))]
    assert python(code, OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="1") == ["2"]


@linux_only
@needs_numpys
def test_numpys_is_passed_over_without_a_compiler_that_works(tmp_path: Path):
    code = """
        from adapters.system import blas
        blas.SYSTEM_LIBRARIES = ()
        report = blas.load_blas()
        print(report.is_active, report.note)
        """
    (none,) = python(code, PATH=str(tmp_path))
    assert none.startswith("False numpy's OpenBLAS: it needs a C compiler (cc, gcc, clang);")
    (tmp_path / "cc").write_text("#!/bin/sh\necho first >&2\necho no headers here >&2\nexit 3\n")
    (tmp_path / "cc").chmod(0o755)
    (broken,) = python(code, PATH=str(tmp_path))
    assert f"{tmp_path}/cc failed: no headers here" in broken


@linux_only
def test_a_numpy_without_openblas_is_passed_over(tmp_path: Path):
    with pytest.raises(UnusableLibrary, match="known names"), forwarding_library(1, tmp_path / "numpy"):
        pass
    library = tmp_path / "numpy.libs" / "libscipy_openblas64_-1.so"
    library.parent.mkdir()
    library.write_text("not a library")
    damaged = pytest.raises(UnusableLibrary, match=r"invalid ELF header|file too short")
    with damaged, forwarding_library(1, tmp_path / "numpy"):
        pass


def test_one_processor_is_left_for_the_rest():
    assert [choose_num_threads(count) for count in (1, 2, 4, 64)] == [1, 1, 3, MAX_THREADS]


def test_cpu_quota_of_a_container_counts(tmp_path: Path):
    without = usable_cpus(tmp_path)
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert usable_cpus(tmp_path) == min(without, 2)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cpus(tmp_path) == without
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cpus(tmp_path) == 1


@pytest.mark.skipif(IS_LINUX, reason="for other systems")
def test_elsewhere_nothing_is_loaded():
    assert not load_blas({}).is_needed


def test_whatever_may_round_otherwise_has_another_identity() -> None:
    haswell = BlasReport(True, "/lib/libopenblas.so.0", "OpenBLAS 0.3.21 Haswell", 4)
    others = [
        replace(haswell, build="OpenBLAS 0.3.21 SkylakeX"),
        replace(haswell, build="OpenBLAS 0.3.30 Haswell"),
        replace(haswell, num_threads=2),
        replace(haswell, path="/lib/libblis.so.4", build=""),
        BlasReport(False),
    ]
    assert len({report.identity for report in (haswell, *others)}) == len(others) + 1
    assert replace(haswell, path="/elsewhere/libopenblas.so.0").identity == haswell.identity
