"""What computes here, for the banner and for doctor. Imports MLX; loads the system BLAS before that."""

from adapters.system.blas import BlasReport, load_blas
from application.settings import Settings
from interfaces.composition.backends import importing


def device_and_blas(settings: Settings) -> tuple[str, BlasReport | None]:
    """The device's name and what its float32 products run on; no BLAS for the toy backend."""
    if settings.engine.backend == "fake":
        return "toy engine", None
    report = load_blas()
    from adapters.mlx.runtime.device import describe_device

    return describe_device(), report


def describe_computing(settings: Settings) -> str:
    """One line: `cpu, OpenBLAS 0.3.21, 1 thread (/usr/lib/...)`. Raises ServerUnavailable."""
    with importing():
        device, blas = device_and_blas(settings)
    return f"{device}, {blas.describe()}" if blas and blas.is_needed else device
