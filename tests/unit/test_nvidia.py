"""An NVIDIA GPU is told by its driver's device, without a library; what MLX is told before it is imported there."""

import os
from pathlib import Path

import pytest

from adapters.system import heap, nvidia
from adapters.system.nvidia import has_nvidia
from interfaces.composition.backends import import_backend


def test_a_driver_is_there_when_its_device_is(tmp_path: Path) -> None:
    first, second = tmp_path / "nvidiactl", tmp_path / "dxg"
    assert not has_nvidia((first, second))
    second.touch()
    assert has_nvidia((first, second))


@pytest.mark.parametrize("is_there", [True, False])
def test_threads_share_what_they_freed_only_where_no_gpu_waits_for_them(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded: list[bool] = []
    monkeypatch.setattr(nvidia, "has_nvidia", lambda: is_there)
    monkeypatch.setattr(heap, "bound_arenas", lambda: bounded.append(True))
    monkeypatch.setattr(heap, "keep_freed", lambda: None)
    import_backend("mlx")
    assert bool(bounded) is not is_there


@pytest.mark.parametrize("was_set", [None, "1"])
def test_a_plan_too_many_is_forgotten_and_no_error(was_set: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA build throws at every length that is new, once it has seen twice as many as it keeps."""
    name = "MLX_ENABLE_CACHE_THRASHING_CHECK"
    monkeypatch.setenv(name, was_set or "")
    if was_set is None:
        monkeypatch.delenv(name)
    import_backend("mlx")
    assert os.environ[name] == (was_set or "0"), "unless somebody has set otherwise"
