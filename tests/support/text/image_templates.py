"""Chat templates that show images, shaped as those of the families are."""

_TEXT_OF = "{% if m.content is string %}{{ m.content }}{% else %}"
_PARTS = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}"
_ENDS = "{% endif %}{% endfor %}{% endif %}"
_OPEN = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
_CLOSE = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

IN_PLACE = f"{_OPEN}{_TEXT_OF}{_PARTS}<image>{_ENDS}{_CLOSE}"
"""As SmolVLM's."""

WITH_MARKS = f"{_OPEN}{_TEXT_OF}{_PARTS}<see><image></see>{_ENDS}{_CLOSE}"
"""As Qwen's: marks around the placeholder."""

IMAGES_FIRST = (
    f"{_OPEN}{_TEXT_OF}{{% for part in m.content %}}{{% if part.type == 'image' %}}<image>\n{{% endif %}}{{% endfor %}}"
    f"{{% for part in m.content %}}{{% if part.type == 'text' %}}{{{{ part.text | trim }}}}{_ENDS}{_CLOSE}"
)
"""As LLaVA's."""

USERS_ONLY = (
    f"{_OPEN}{{% if m.role == 'user' %}}{_TEXT_OF}{_PARTS}<see><image></see>{_ENDS}"
    f"{{% else %}}{{{{ m.content }}}}{{% endif %}}{_CLOSE}"
)
"""Writes the list of another role's parts as Python does."""

REFUSES_TOOLS = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% endfor %}"
    + IN_PLACE
)

SHOUTS = f"{_OPEN}{{{{ m.content | upper }}}}{_CLOSE}"
"""Shows no images, and changes what is written."""
