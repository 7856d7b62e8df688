"""Fields of OpenAI's dialect, and of servers that extend it, that Cairn refuses by name, with their neutral values."""

from interfaces.http.incoming.json_body import RefusedFields

EVERYWHERE: RefusedFields = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": ("",),
    "documents": ([],),
    "dry_multiplier": (0,),
    "grammar": ("",),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "logits_processors": ([],),
    "mirostat": (0,),
    "prompt_embeds": (),
    "repeat_penalty": (1,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "tfs_z": (1,),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
}

IN_CHAT: RefusedFields = {
    **EVERYWHERE,
    "add_special_tokens": (False,),
    "audio": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"], []),
    "web_search_options": (),
}

IN_COMPLETIONS: RefusedFields = {
    **EVERYWHERE,
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "continue_final_message": (False,),
    "reasoning_budget": (),
    "suffix": ("",),
    "thinking_budget": (),
    "thinking_token_budget": (),
}
