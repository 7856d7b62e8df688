"""The compute side as one choice: engine, models and tokenizers that belong together.

Each backend is imported when it is chosen, so that the toy one never pays for MLX.
"""

from collections.abc import Callable
from dataclasses import dataclass

from application.ports.compute import ComputeEngine
from application.ports.model_repository import ModelRepository
from application.ports.tokenizer import TokenizerLoader
from application.settings import Settings


@dataclass(frozen=True, slots=True)
class Backend:
    """`engine_factory` runs on the compute thread. `default_grid`: prefill grid in tokens when none is set."""

    engine_factory: Callable[[], ComputeEngine]
    repository: ModelRepository
    tokenizers: TokenizerLoader
    default_grid: int


def fake_backend(settings: Settings) -> Backend:
    """The deterministic toy engine: the whole service without MLX."""
    from adapters.fake.engine import FakeEngine
    from adapters.fake.models import FakeModels
    from adapters.fake.tokenizer import FakeTokenizers

    return Backend(FakeEngine, FakeModels(), FakeTokenizers(), default_grid=settings.engine.block_size)


def mlx_backend(settings: Settings) -> Backend:
    """Models on MLX. A system BLAS is loaded first: MLX binds to whatever is there at its first import."""
    from adapters.system.blas import load_blas

    load_blas()
    from adapters.huggingface.repository import HuggingFaceRepository
    from adapters.mlx.engine import MlxEngine
    from adapters.tokenizers.loader import HfTokenizerLoader

    return Backend(
        lambda: MlxEngine(settings.model, settings.engine),
        HuggingFaceRepository(settings.model),
        HfTokenizerLoader(),
        default_grid=2048,
    )


__all__ = ("Backend", "fake_backend", "mlx_backend")
