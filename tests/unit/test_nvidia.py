"""An NVIDIA GPU is told by its driver's device, without a library."""

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
