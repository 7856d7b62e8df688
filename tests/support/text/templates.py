"""Chat templates that each insist on something, as the ones in the wild do."""

REFUSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SYSTEM_FIRST = (
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

HOISTS_SYSTEM = (
    "{% for m in messages if m.role == 'system' %}<|im_start|>system\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As DeepSeek V3's."""

FIRST_SYSTEM_ONLY = (
    "{% set turns = messages[1:] if messages[0].role in ['system', 'developer'] else messages %}"
    "{% if turns | length < messages | length %}<|im_start|>{{ messages[0].role }}\n"
    "{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in turns if m.role in ['user', 'assistant', 'tool'] %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As harmony's: what instructs after the first message is dropped without a word."""

NO_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)

ALTERNATES = (
    "{% set turns = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

KNOWS_DEVELOPER = (
    "{% for m in messages %}"
    "{% if m.role in ['developer', 'system'] %}<|im_start|>developer\n{{ m.content }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

DROPS_REASONING = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}"
    "<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

WANTS_TEXT_ARGUMENTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name + ' ' + call.function.arguments }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

WANTS_SHORT_IDS = (
    "{% for m in messages %}{% for call in m.tool_calls or [] %}{% if call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}"
    "[{{ call.id }}]{% endfor %}{% if m.tool_call_id %}[{{ m.tool_call_id }}]{% endif %}{{ m.content }}{% endfor %}"
)

WANTS_PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SHOWS_FIELDS = (
    "{{ tools | tojson }}|{% for m in messages %}{{ m.role }}:{{ m.name }}:{{ m.reasoning_content }}:"
    "{{ m.tool_calls | tojson if m.tool_calls else '' }}:{{ m.content }}|{% endfor %}{{ tone }}"
)

TAGS_OF_KEYS = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}<function>{{ t.function.name }}"
    "{% for name, schema in (t.function.parameters.properties or {}) | items %}<parameter>{{ name }}"
    "{% for key, value in schema | items if key not in ['type', 'description'] %}"
    "{{ '<' ~ key ~ '>' ~ value ~ '</' ~ key ~ '>' }}{% endfor %}</parameter>{% endfor %}</function>{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3-Coder's: members of a schema that it does not know become tags."""

DELETES_SWITCHES = (
    "{% set ns = namespace(thinks=true) %}{% for m in messages %}"
    "{% if m.role in ['system', 'user'] and '/think' in m.content %}{% set ns.thinks = true %}"
    "{% elif m.role in ['system', 'user'] and '/no_think' in m.content %}{% set ns.thinks = false %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content.replace('/think', '').replace('/no_think', '') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if not ns.thinks %}<think></think>{% endif %}{% endif %}"
)
"""As Nemotron's: words that switch reasoning are cut out of contents."""
