"""Fields that would change the answer and that Cairn does not support: refused by name, never silently ignored.

Each with its neutral values, which clients send as defaults and which change nothing; null is always neutral. Every
other unknown field is ignored: clients send many that are harmless.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from domain.errors import InvalidRequest

Refused = Mapping[str, tuple[Any, ...]]

EVERYWHERE: Refused = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": ("",),
    "continue_final_message": (False,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "logits_processors": ([],),
    "mirostat": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repeat_penalty": (1,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "tfs_z": (1,),
    "thinking_budget": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
}

IN_CHAT: Refused = {
    **EVERYWHERE,
    "add_special_tokens": (False,),
    "audio": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"], []),
    "web_search_options": (),
}

IN_COMPLETIONS: Refused = {**EVERYWHERE, "add_special_tokens": (True,), "suffix": ("",)}


def refuse_unsupported(refused: Refused) -> Callable[[bytes], None]:
    """A check for raw bodies that decode as JSON objects. It raises InvalidRequest, naming the first such field."""
    present = msgspec.defstruct("RefusedFields", [(name, Any, None) for name in sorted(refused)], kw_only=True)
    decoder = msgspec.json.Decoder(present)

    def check(body: bytes) -> None:
        fields = msgspec.structs.asdict(decoder.decode(body))
        for name, value in fields.items():
            if value is not None and value not in refused[name]:
                raise InvalidRequest(f"{name} is not supported by this server; leave it out", param=name)

    return check


__all__ = ("IN_CHAT", "IN_COMPLETIONS", "refuse_unsupported")
