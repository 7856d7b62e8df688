"""The families of mlx-vlm: whose text is computed by its code, and why others are not served.

mlx-lm comes first wherever it has the family. `SERVED` is a list of what was shown, not of what imports: for each, a
test computes in chunks, restored, and in a batch, in a process of its own, because a module may end its process. The
test also compares these tables with the installed mlx-vlm, so that a new release shows what is missing.
"""

from collections.abc import Mapping

from adapters.mlx.runtime.mlx_lm import knows_model_type
from adapters.mlx.vlm.library import missing

SERVED = frozenset(
    {"cohere2_moe", "flint", "hrm_text", "k2_horizon", "kolibri1", "longcat_flash_sparse", "xing4_0"}
    | {"aya_vision", "dots_ocr", "fastvlm", "granite_vision", "internvl_chat", "jina_vlm", "llava_bunny", "llava_next"}
    | {"llava_onevision", "llmjpvl", "mimo_v2", "mistral_large3", "molmo", "molmo2", "moondream2", "phi4_siglip"}
    | {"glm5_next", "internvl", "plamo2vl", "qwen4_exp", "step3p7"}
    | {"deepseek_vl_v2", "deepseekocr", "deepseekocr_2", "got", "granite4_vision", "idefics2", "mage_vl", "mllama"}
    | {"moondream3", "nemotron_h_nano_omni"}
    | {"deepseek_v4", "hy_v4"}  # mended: see `mends`
)
"""The modules of mlx-vlm whose text networks are trunks."""

_RENAMED: Mapping[str, str] = {
    "bunny-llama": "llava_bunny",
    "cohere2_vision": "aya_vision",
    "cohere2moe": "cohere2_moe",
    "granite-vision": "granite_vision",
    "granite4-vision": "granite4_vision",
    "jvlm": "jina_vlm",
    "llava-qwen2": "llava_bunny",
    "llava_qwen2": "fastvlm",
    "moondream1": "moondream2",
    "nemotron_h_omni": "nemotron_h_nano_omni",
    "nemotronh_nano_omni_reasoning_v3": "nemotron_h_nano_omni",
    "phi4-siglip": "phi4_siglip",
}
"""Model types of config.json whose module has another name, as in mlx-vlm's own table."""

_ENCODES = "it gives vectors, not answers"
_DECIDES = "it gives a decision, labels or boxes, not text"
_DRAWS = "it makes pictures"
_DENOISES = "it writes by diffusion, not token by token"
_CROSS = "its decoder reads an encoder's output, which is no part of a prompt's tokens"
_POSITIONS = "its network keeps the positions of the last prompt for the next one"
_UNPROVED = "nobody has shown that its state can be put back: it has no tiny model in Cairn's tests"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        {"bert", "colidefics3", "colqwen2_5", "dinov2", "embedding_gemma2", "gemma3_embedding", "lfm2_colbert"}
        | {"lfm2_embedding", "lfm2_encoder", "llama_bidirec", "llama_nemotron_vl_embedding", "ministral3_embedding"}
        | {"modernbert", "qwen3_embedding", "qwen3_vl_embedding", "siglip", "xlm_roberta"},
        _ENCODES,
    ),
    **dict.fromkeys(
        {"clef", "d1", "d1_omni", "decider2", "falcon_perception", "gliner2_5", "laya", "locateanything", "moge3"}
        | {"openai_privacy_filter", "pp_doclayout_v3", "rfdetr", "rt_detr_v2", "sam3", "sam3_1", "sam3d_body"}
        | {"sam3d_objects", "sapiens2", "video_depth_anything", "yolo11"},
        _DECIDES,
    ),
    **dict.fromkeys(
        {"bonsai", "ernie_image", "flux2", "flux3", "ideogram4", "llada_image", "mage_flow", "minimax_h3", "ming_image"}
        | {"moss_image", "qwen_image", "z_image"},
        _DRAWS,
    ),
    **dict.fromkeys(("diffusion_gemma", "llada2_moe", "nemotron_labs_diffusion"), _DENOISES),
    **dict.fromkeys(("florence2", "nemotron_parse"), _CROSS),
    **dict.fromkeys(("nemotron_voicechat", "qwen3_omni_moe"), "it answers in speech"),
    **dict.fromkeys(("ernie4_5_moe_vl", "glm4v", "glm4v_moe", "glm_ocr", "hunyuan_vl", "paddleocr_vl"), _POSITIONS),
    **dict.fromkeys(("cohere_compass", "minicpmo", "minicpmv4_6", "minicpmv4_7"), _POSITIONS),
    **dict.fromkeys(("inkling", "multi_modality"), "its module imports a library that a server lacks"),
    **dict.fromkeys(
        ("falcon_ocr", "indic_ocr", "limite", "molmo_point", "youtu_vl", "zaya1_vl"),
        _UNPROVED,
    ),
    "paligemma": "it reads a prompt in both directions",
    "phi3_v": "its tower is a part of its text network, and would be loaded with it",
    "phi4mm": "mlx-vlm adds an adapter for images to its text network",
    **dict.fromkeys(("unlimited_ocr", "z1t"), "its cache class is not read"),
}
"""Modules of mlx-vlm that are not served, and why."""


def is_vlm_family(model_type: str) -> bool:
    """True if the text of this type is computed by mlx-vlm's code."""
    return not knows_model_type(model_type) and family_named(model_type) in SERVED


def family_named(model_type: str) -> str:
    """The module of mlx-vlm for a `model_type`."""
    return _RENAMED.get(model_type.lower(), model_type.lower())


def why_unserved(model_type: str) -> str:
    """Empty if there is code for a model of this type; otherwise the reason, and what to do."""
    if knows_model_type(model_type):
        return ""
    family = family_named(model_type)
    if family in SERVED:
        why = missing()
        return f"models of type {model_type!r} are computed by mlx-vlm: {why}" if why else ""
    if family in REFUSED:
        return f"models of type {model_type!r} are not served: {REFUSED[family]}"
    return f"mlx-lm and mlx-vlm have no model type {model_type!r}"
