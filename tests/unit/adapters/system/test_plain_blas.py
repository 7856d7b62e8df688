"""What the tests compute with is, to the last bit, what MLX computes with its own BLAS."""

import ctypes
import os
import sys

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.processes.processes import finish, start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS computes with Accelerate")

PRODUCTS = """
import hashlib, sys
from tests.support.mlx.plain_blas import load_plain_blas
if sys.argv[1] == "plain" and not load_plain_blas():
    print("cannot be built here")
    sys.exit()
import mlx.core as mx
found = hashlib.sha256()
for m in (1, 2, 5, 32):
    for n, k in ((1, 3), (16, 64), (47, 33), (288, 300)):
        a, b, c = (mx.random.normal(shape, key=mx.random.key(m * n)) for shape in ((m, k), (k, n), (m, n)))
        across, down = mx.contiguous(b.T).T, mx.contiguous(a.T).T
        for left in (a, down):
            for right in (b, across):
                for product in (left @ right, mx.addmm(c, left, right, alpha=0.3, beta=0.7), mx.addmm(c, left, right)):
                    found.update(bytes(memoryview(product)))
print(found.hexdigest())
"""


def products(which: str) -> str:
    return finish(start("-c", PRODUCTS, which), PATIENCE_S).strip()


def test_every_bit_is_the_reference_s() -> None:
    plain = products("plain")
    if len(plain) != 64:
        pytest.skip(f"the plain BLAS {plain}")
    assert plain == products("reference")


@pytest.mark.skipif(os.environ["CAIRN_BLAS"] != "off", reason="another BLAS was asked for")
def test_it_is_in_place_where_it_can_be_built() -> None:
    """So that what the test above finds is true of all others."""
    is_in_place = hasattr(ctypes.CDLL(None), "cblas_sgemm")
    assert is_in_place == (len(products("plain")) == 64)
