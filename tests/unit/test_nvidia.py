"""An NVIDIA GPU is told by its driver's device, without a library."""

from pathlib import Path

from adapters.system.nvidia import has_nvidia


def test_a_driver_is_there_when_its_device_is(tmp_path: Path) -> None:
    first, second = tmp_path / "nvidiactl", tmp_path / "dxg"
    assert not has_nvidia((first, second))
    second.touch()
    assert has_nvidia((first, second))
