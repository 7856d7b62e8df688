"""Pieces of chat templates, local and not, of which tests put templates together; and chats that tell the two apart."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from adapters.huggingface.embedded_models import EMBEDDED_IDS, embedded_folder
from domain.chat import ChatMessage, Role, ToolCall, ToolSpec
from tests.support import templates
from tests.support.tiny_tokenizers import CHATML

LLAMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}<s>{{ system }}"
    "{% if tools %}{% set first = messages[0]['content'] | trim %}{% set messages = messages[1:] %}"
    "{% for t in tools %}{{ t | tojson }}{% if not loop.last %},{% endif %}{% endfor %}{{ first }}{% endif %}"
    "{% for message in messages %}{% if message.role == 'tool' or message.role == 'ipython' %}<tool>"
    "{% if message.content is mapping or message.content is iterable %}{{ message.content | tojson }}{% endif %}"
    "{% elif 'tool_calls' in message %}{% if not message.tool_calls | length == 1 %}"
    "{{ raise_exception('one call only') }}{% endif %}{{ message.tool_calls[0].function | tojson }}"
    "{% else %}<{{ message.role }}>{{ message.content | trim }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

QWEN_2 = (
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% else %}You are.{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}<|im_start|>assistant"
    "{% if message.content %}\n{{ message.content }}{% endif %}"
    "{% for tool_call in message.tool_calls or [] %}{% if tool_call.function is defined %}"
    "{% set tool_call = tool_call.function %}{% endif %}<tool_call>{{ tool_call.name }}"
    "{% for key, value in tool_call.arguments | items %}{{ key }}={{ value }}{{ loop.index }}{% endfor %}{% endfor %}"
    "<|im_end|>\n{% elif message.role == 'tool' %}"
    "{% if (loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool') %}<|im_start|>user{% endif %}\n"
    "{{ message.content }}{% if loop.last or (messages[loop.index0 + 1].role != 'tool') %}<|im_end|>\n{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

WHOLE: dict[str, str] = {
    **{name: text for name, text in vars(templates).items() if name.isupper()},
    "CHATML": CHATML,
    "DEMO": (embedded_folder(EMBEDDED_IDS[0]) / "chat_template.jinja").read_text(),  # type: ignore[operator]
    "LLAMA": LLAMA,
    "QWEN_2": QWEN_2,
}

LOCAL = frozenset(WHOLE) - {"HOISTS_SYSTEM", "FIRST_SYSTEM_ONLY", "DROPS_REASONING"}

BEFORE = (
    "",
    "{% set ns = namespace(n=0, last='', seen=[]) %}",
    "{% set it = [1, 2, 3, 4] | select('odd') %}",
    "{% set next = joiner(',') %}",
    "{% set turn = cycler('a', 'b', 'c') %}",
    "{% if messages[0].role == 'system' %}{% set head = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set turns = messages %}{% endif %}",
    "{% set turns = messages[1:] if messages[0].role == 'system' else messages %}",
    "{% set turns = messages[-3:] %}",
    "{% set turns = messages | list %}",
    "{% set messages = messages[1:] %}",
    "{{ messages | length }}",
    "{% set many = messages | length > 40 %}",
    "{% set end = messages[-1].content %}",
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for m in messages[::-1] %}{% set ns.last = m.content %}{% endfor %}",
    "{% for t in tools or [] %}{{ loop.index }}{{ t | tojson }}{{ '' if loop.last else ',' }}{% endfor %}",
    "{% macro shown(m) %}{{ m.content }}{{ varargs }}{% endmacro %}",
)

LOOPS = (
    "for m in messages",
    "for m in turns",
    "for m in messages if m.role != 'system'",
    "for m in messages[1:]",
    "for m in messages[2:]",
    "for m in messages[:-1]",
    "for m in messages | reverse",
    "for m in messages recursive",
)

WITHIN = (
    "<{{ m.role }}>{{ m.content }}",
    "{{ m.content | trim }}{{ m.name }}{{ m.reasoning_content }}",
    "{{ loop.index }}",
    "{{ loop.length }}",
    "{{ loop.revindex0 }}",
    "{{ loop['index0'] }}",
    "{{ loop.cycle('a', 'b', 'c') }}",
    "{{ 'changed' if loop.changed(m.role) }}",
    "{{ 'even' if loop.index0 % 2 == 0 else 'odd' }}",
    "{{ 'third' if loop.index0 % 3 == 0 }}",
    "{{ 'first' if loop.first }}{{ 'last' if loop.last }}",
    "{{ 'begins' if loop.index0 < 3 }}",
    "{{ 'later' if loop.index > 30 }}",
    "{{ 'later' if 30 < loop.index }}",
    "{{ loop.previtem.role }}{{ loop.nextitem.role }}",
    "{% set ns.n = ns.n + 1 %}{{ ns.n }}",
    "{% if m.role == 'user' %}{% set ns.last = m.content %}{% endif %}{{ ns.last }}",
    "{% set ns = namespace(n=0) %}{% for c in m.content %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{% set own = ns %}{% set own.n = own.n + 1 %}{{ own.n }}",
    "{% if m.role == 'user' %}{% set said = m.content %}{% endif %}{{ said }}",
    "{% if m.role == 'user' %}{% set head = m.content %}{% endif %}{{ head }}",
    "{% for x in it %}{{ x if m.role == 'tool' }}{% endfor %}",
    "{{ next() }}{{ turn.next() if m.role == 'user' }}",
    "{{ messages[0].content }}{{ messages[2].role }}",
    "{{ messages[20].content }}",
    "{{ messages[-1].content }}",
    "{{ messages[loop.index0 - 1].content }}",
    "{{ 'x' if loop.first or messages[loop.index0 - 1].role == m.role }}",
    "{{ 'x' if not loop.first and messages[loop.index0 - 1].role == m.role }}",
    "{{ 'x' if loop.last or messages[loop.index0 + 1].role == m.role }}",
    "{{ messages[loop.index0 + 5].role }}",
    "{{ turns[loop.index0].content }}",
    "{{ turns[loop.index0 + 1].content }}",
    "{{ messages | length }}{{ many }}{{ end }}",
    "{{ messages }}",
    "{{ messages.__len__() }}{{ messages.count(m) }}",
    "{{ (messages | last).content }}",
    "{{ m in messages[-4:] }}",
    "{% for o in messages %}{{ o.role[0] }}{% endfor %}",
    "{% if m.role == 'tool' %}{% break %}{% endif %}",
    "{% if m.role == 'tool' %}{% continue %}{% endif %}",
    "{% set l = loop %}{{ l.index0 }}",
    "{% for c in m.tool_calls or [] %}{{ loop.index0 }}{{ c.function | tojson }}{{ loop.last }}{% endfor %}",
    "{{ shown(m) }}",
    "{% set x %}{{ m.content }}!{% endset %}{{ x }}",
    "{% with y = m.role %}{{ y }}{% endwith %}",
    "{% filter upper %}{{ m.content }}{% endfilter %}",
    "{% set turns = messages %}",
    "{{ raise_exception('no') if m.role == 'tool' and loop.previtem.role == 'user' }}",
)

AFTER = (
    "",
    "{% if add_generation_prompt %}<a>{% endif %}",
    "{{ messages[-1].role }}",
    "{{ messages | length }}",
    "{{ ns.n }}{{ ns.last }}",
    "{% for m in messages %}{{ m.role[0] }}{% endfor %}",
    "{{ messages[20].content }}",
)

ROLES = st.sampled_from([*Role, Role.USER, Role.ASSISTANT, Role.TOOL])
TEXTS = st.sampled_from(
    ["", "x", "yes", "no\n", "  two  ", "漢字 😀", "probe", "Zebra", "<a>b</a> c", "Error: e", "}{"]
)
CALLS = st.builds(
    ToolCall,
    id=st.sampled_from(["call_1", "abcdefghi", "c"]),
    name=st.sampled_from(["add", "get"]),
    arguments=st.sampled_from(["{}", '{"a": 1, "b": [true]}', '{"b": [1], "a": true}', "{broken", '{"a":1.0}']),
    is_generated=st.booleans(),
)


@st.composite
def messages(draw: st.DrawFn) -> ChatMessage:
    role = draw(ROLES)
    is_answer = role is Role.ASSISTANT
    return ChatMessage(
        role,
        draw(TEXTS),
        name=draw(st.sampled_from([None, None, "Ann"])),
        reasoning=draw(st.sampled_from([None, "because", ""])) if is_answer else None,
        tool_calls=tuple(draw(st.lists(CALLS, max_size=2))) if is_answer else (),
        tool_call_id=draw(st.sampled_from(["call_1", "abcdefghi", "c", "?"])) if role is Role.TOOL else None,
        is_error=role is Role.TOOL and draw(st.booleans()),
    )


@st.composite
def chats(draw: st.DrawFn) -> tuple[ChatMessage, ...]:
    """Long ones, of which most repeats: what is carried through the middle or counted there is seen at the end."""
    few = st.lists(messages(), min_size=1, max_size=5)
    middle = draw(few)
    polite = [ChatMessage(Role.USER, "hm"), ChatMessage(Role.ASSISTANT, "ok")]
    kind = draw(st.sampled_from(["any", "polite", "both"]))
    repeated = {"any": middle, "polite": polite, "both": [*polite, *middle]}[kind]
    times = draw(st.integers(0, 60)) // len(repeated)
    first = draw(st.lists(messages(), max_size=10)) if kind != "polite" else []
    return (*first, *repeated * times, *draw(few))


TOOLS = st.sampled_from([(), (ToolSpec("add", "Add", {"type": "object"}), ToolSpec("get"))])


def applied(source: str) -> Callable[..., str]:
    """As transformers renders it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(reason: str) -> None:
        raise TemplateError(reason)

    environment.globals["raise_exception"] = refuse  # pyright: ignore[reportArgumentType]
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    template = environment.from_string(source)

    def apply(conversation: list[dict[str, Any]], **options: Any) -> str:
        return template.render(messages=conversation, **options)

    return apply


__all__ = ("AFTER", "BEFORE", "LOCAL", "LOOPS", "TOOLS", "WHOLE", "WITHIN", "applied", "chats", "messages")
