"""Where `cairn serve` lets the engine run when nobody says so, and what it is told from."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from adapters.system import gpu
from application.settings import EngineSettings, Settings
from domain.engine_kind import AUTO, PROCESS, THREAD, ComputesOn, embedded_kind, engine_kind
from domain.errors import ServerUnavailable
from interfaces.composition import backends
from interfaces.composition.engine_kind import server_kind


@pytest.mark.parametrize("wanted", [THREAD, PROCESS])
@pytest.mark.parametrize("computes_on", ComputesOn)
def test_what_is_set_is_taken_anywhere(wanted: str, computes_on: ComputesOn) -> None:
    found = engine_kind(wanted, computes_on)
    assert (found.name, found.why) == (wanted, "as set")
    assert embedded_kind(wanted) == found


def test_else_what_was_measured_faster_and_it_says_why() -> None:
    found = {computes_on: engine_kind(AUTO, computes_on) for computes_on in ComputesOn}
    assert [computes_on for computes_on, kind in found.items() if kind.name == PROCESS] == [ComputesOn.CUDA]
    assert all(kind.why.startswith("auto: ") for kind in found.values())
    assert str(found[ComputesOn.CUDA]) == "a process of its own (auto: measured faster on NVIDIA GPUs)"


def test_nothing_is_started_unasked_in_somebody_elses_program() -> None:
    assert embedded_kind(AUTO).name == THREAD


def test_the_toy_engine_is_told_from_the_settings() -> None:
    assert "toy" in server_kind(Settings(engine=EngineSettings(backend="fake"))).why


@pytest.mark.parametrize(
    ("device", "visible", "is_installed", "expected"),
    [
        ("nvidiactl", None, True, True),
        ("dxg", "0", True, True),
        ("nvidiactl", "", True, False),
        ("nvidiactl", "-1", True, False),
        ("nvidiactl", None, False, False),
        ("null", None, True, False),
    ],
)
def test_a_gpu_is_one_that_is_there_is_not_hidden_and_has_a_build(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    visible: str | None,
    is_installed: bool,
    expected: bool,
) -> None:
    (tmp_path / device).touch()

    def version(package: str) -> str:
        if is_installed and package == "mlx-cuda-13":
            return "0.32.4"
        raise PackageNotFoundError(package)

    monkeypatch.setattr(gpu, "version", version)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu.has_cuda(tmp_path, environment) is expected


def test_what_computes_that_cannot_be_imported_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_settings: Settings) -> backends.Backend:
        raise ImportError("libmlx.so: no such file")

    monkeypatch.setattr(backends, "mlx_backend", failing)
    with pytest.raises(ServerUnavailable, match=r"^the engine cannot be made: ImportError: libmlx\.so: no such file$"):
        backends.choose_backend(Settings())
