"""Set before anything imports MLX: no run-time C++ compiler, one BLAS thread, no telemetry, no hub."""

import os

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from adapters.system.blas import load_blas  # after the variables above

load_blas()  # real models compute some ten times faster with it, and in shape-dependent kernels, as GPUs do
