"""`options` of a request: how tokens are chosen, when the answer ends, and how Ollama would load the model."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct

from domain.request.sampling import SamplingParams, StopRules
from interfaces.http.fields.parameters import ignored, mapped, refused, supported

_LOADING = "the server loads models its own way"


class Options(Struct, kw_only=True):
    """Null and absent mean the same for every field."""

    num_predict: Annotated[
        int | None, mapped("an upper bound; negative is none; with less room, the context is the bound")
    ] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default")] = None
    top_k: Annotated[int | None, supported("0 or less is off, as by default")] = None
    top_p: Annotated[float | None, supported("above 0, at most 1; 1 by default")] = None
    min_p: Annotated[float | None, supported("0 to 1, 0 by default")] = None
    seed: Annotated[int | None, supported("the randomness of the answer")] = None
    stop: Annotated[str | list[str] | None, supported("up to 16; never part of the answer")] = None
    repeat_penalty: Annotated[float | None, mapped("over the whole answer and prompt; 1 by default")] = None
    presence_penalty: Annotated[float | None, supported("0 by default")] = None
    frequency_penalty: Annotated[float | None, supported("0 by default")] = None
    mirostat: Annotated[int | None, refused("there is no such sampler", 0)] = None
    typical_p: Annotated[float | None, refused("there is no such sampler", 1.0)] = None
    tfs_z: Annotated[float | None, refused("there is no such sampler", 1.0)] = None
    num_ctx: Annotated[Any, ignored("the context is the model's, or `model.context_length`")] = None
    num_keep: Annotated[Any, ignored("nothing is taken out of the conversation")] = None
    repeat_last_n: Annotated[Any, ignored("`repeat_penalty` looks at everything")] = None
    mirostat_tau: Annotated[Any, ignored("it belongs to `mirostat`")] = None
    mirostat_eta: Annotated[Any, ignored("it belongs to `mirostat`")] = None
    penalize_newline: Annotated[Any, ignored("a line break is a token like any other")] = None
    num_batch: Annotated[Any, ignored(_LOADING)] = None
    num_gpu: Annotated[Any, ignored(_LOADING)] = None
    main_gpu: Annotated[Any, ignored(_LOADING)] = None
    low_vram: Annotated[Any, ignored(_LOADING)] = None
    numa: Annotated[Any, ignored(_LOADING)] = None
    use_mmap: Annotated[Any, ignored(_LOADING)] = None
    use_mlock: Annotated[Any, ignored(_LOADING)] = None
    num_thread: Annotated[Any, ignored(_LOADING)] = None


WIRE_NAMES: Mapping[str, str] = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "grammar": "format",
    **{name: f"options.{name}" for name in ("temperature", "top_k", "top_p", "min_p", "seed", "stop")},
    **{name: f"options.{name}" for name in ("presence_penalty", "frequency_penalty")},
}
"""The client's names for fields that the domain calls otherwise."""


def sampling_params(options: Options) -> SamplingParams:
    """Raises InvalidRequest."""
    return SamplingParams.chosen(
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=None if options.top_k is None else max(0, options.top_k),
        min_p=options.min_p,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=options.seed,
    )


def stop_rules(options: Options) -> StopRules:
    """Raises InvalidRequest."""
    stop = [options.stop] if isinstance(options.stop, str) else options.stop or []
    limit = options.num_predict
    return StopRules(None if limit is None or limit < 0 else limit, stop=tuple(stop), fits_room=True)
