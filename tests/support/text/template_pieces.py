"""The templates that tests render, and chats to render with them."""

from hypothesis import strategies as st

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from tests.support.mlx.tiny_tokenizers import CHATML
from tests.support.text import templates

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
    """Long ones, of which most repeats."""
    few = st.lists(messages(), min_size=1, max_size=5)
    middle = draw(few)
    polite = [ChatMessage(Role.USER, "hm"), ChatMessage(Role.ASSISTANT, "ok")]
    kind = draw(st.sampled_from(["any", "polite", "both"]))
    repeated = {"any": middle, "polite": polite, "both": [*polite, *middle]}[kind]
    times = draw(st.integers(0, 60)) // len(repeated)
    first = draw(st.lists(messages(), max_size=10)) if kind != "polite" else []
    return (*first, *repeated * times, *draw(few))


TOOLS = st.sampled_from([(), (ToolSpec("add", "Add", {"type": "object"}), ToolSpec("get"))])
