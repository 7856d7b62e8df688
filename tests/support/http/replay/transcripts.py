"""What models of each family write, with what it means: short answers in the form that their published templates show.

`marks`: the added tokens; those in `special` are special ones, which a detokenizer drops. `template`: enough of the
family's template to tell it by. `prompt_end`: how the template opens the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from domain.request.chat import ToolSpec
from domain.request.stream import ContentDelta, ReasoningDelta, TextDelta, ToolCallDelta

_PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"enum": ["c", "f"]},
        "places": {"type": "array", "items": {"type": "string"}},
        "exact": {"type": "boolean"},
    },
    "required": ["city"],
}
TOOLS = (ToolSpec("get_weather", "Weather of a city", _PARAMETERS), ToolSpec("now"))

WEATHER = ("get_weather", {"city": "Bern", "days": 3})
NOW: tuple[str, dict[str, object]] = ("now", {})


@dataclass(frozen=True, slots=True)
class Told:
    """An answer's content, joined; `calls` as (id, name, arguments' text)."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    family: str
    answer: str
    template: str
    special: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    prompt_end: str = ""
    reasoning: str = ""
    text: str = ""
    calls: tuple[tuple[str, dict[str, object]], ...] = field(default=(WEATHER,))


def told(deltas: Sequence[ContentDelta]) -> Told:
    """The deltas joined; each call's first piece names it, and none comes before it."""
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    calls: list[tuple[str, str, str]] = []
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            if delta.id:
                assert delta.index == len(calls)
                calls.append((delta.id, delta.name, delta.arguments))
            else:
                assert delta.index == len(calls) - 1
                id, name, arguments = calls[-1]
                calls[-1] = (id, name, arguments + delta.arguments)
    return Told(reasoning, text, tuple(calls))


_THINK = "<think>\n{{ message.reasoning_content }}\n</think>"
_KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>")
_KIMI = (*_KIMI, "<|tool_call_argument_begin|>", "<|tool_call_end|>")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_DEEPSEEK = (*_DEEPSEEK, "<｜tool▁sep｜>")
_HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>")
_XTML = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")

TRANSCRIPTS: dict[str, Transcript] = {
    "hermes": Transcript(
        "hermes",
        'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<tool_call>\n{{ tool_call.name }}\n</tool_call>",
        marks=("<tool_call>", "</tool_call>"),
        text="I look.",
        calls=(WEATHER, NOW),
    ),
    "qwen3": Transcript(
        "hermes",
        "<think>\nA call is <tool_call>, so...\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>',
        "<tool_call>" + _THINK,
        marks=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        reasoning="A call is <tool_call>, so...",
    ),
    "qwq": Transcript(
        "hermes",
        "Hm.\n</think>\n\nIt is 3.",
        "<tool_call>" + _THINK,
        prompt_end="<think>\n",
        reasoning="Hm.",
        text="It is 3.",
        calls=(),
    ),
    "qwen3_coder": Transcript(
        "qwen_xml",
        "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=example>\n<parameter=key>\n",
        marks=("<tool_call>", "</tool_call>"),
        text="Sure.",
    ),
    "qwen3_5": Transcript(
        "qwen_xml",
        "Let me.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=example>\n<parameter=key>\n" + _THINK,
        marks=("<tool_call>", "</tool_call>", "<think>", "</think>"),
        prompt_end="<think>\n",
        reasoning="Let me.",
    ),
    "llama3": Transcript(
        "llama3",
        '{"name": "get_weather", "parameters": {"city": "Bern", "days": 3}}',
        '{"name": function name, "parameters": dictionary}',
        special=("<|python_tag|>", "<|eom_id|>"),
    ),
    "llama3_python_tag": Transcript(
        "llama3",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Bern", "days": 3}}; '
        '{"name": "now", "parameters": {}}',
        "<|python_tag|>",
        special=("<|python_tag|>", "<|eom_id|>"),
        calls=(WEATHER, NOW),
    ),
    "llama3_pythonic": Transcript(
        "llama3",
        '[get_weather(city="Bern", days=3), now()]',
        "",
        special=("<|python_tag|>",),
        calls=(WEATHER, NOW),
    ),
    "llama4": Transcript(
        "llama3",
        "<|python_start|>[get_weather(city='Bern', days=3)]<|python_end|>",
        "",
        special=("<|python_start|>", "<|python_end|>"),
    ),
    "mistral": Transcript(
        "mistral",
        'Yes.[TOOL_CALLS]get_weather[ARGS]{"city": "Bern", "days": 3}[TOOL_CALLS]now[ARGS]{}',
        "[TOOL_CALLS]{{ name }}[ARGS]",
        special=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        text="Yes.",
        calls=(WEATHER, NOW),
    ),
    "mistral_v3": Transcript(
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}, '
        '{"name": "now", "arguments": {}}]',
        "[TOOL_CALLS] [",
        special=("[TOOL_CALLS]",),
        calls=(WEATHER, NOW),
    ),
    "magistral": Transcript(
        "mistral",
        '[THINK]Hm.[/THINK]Yes.[TOOL_CALLS]get_weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Bern", "days": 3}',
        "[TOOL_CALLS][THINK][/THINK]",
        special=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
        reasoning="Hm.",
        text="Yes.",
    ),
    "deepseek_v3": Transcript(
        "deepseek",
        "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Bern", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n'
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜>",
        special=_DEEPSEEK,
        text="I look.",
        calls=(WEATHER, NOW),
    ),
    "deepseek_r1": Transcript(
        "deepseek",
        "<think>\nHm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        '```json\n{"city": "Bern", "days": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜>" + _THINK,
        marks=("<think>", "</think>", *_DEEPSEEK),
        reasoning="Hm.",
    ),
    "deepseek_v31": Transcript(
        "deepseek",
        "Hm.</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Bern", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜>" + _THINK,
        special=_DEEPSEEK,
        marks=("<think>", "</think>"),
        prompt_end="<think>",
        reasoning="Hm.",
        text="I look.",
    ),
    "deepseek_v32": Transcript(
        "deepseek_v32",
        'I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "",
        special=("｜DSML｜",),
        text="I look.",
    ),
    "glm": Transcript(
        "glm",
        "\n<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call><tool_call>now</tool_call>",
        "<tool_call>{{ name }}\n<arg_key>" + _THINK,
        marks=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        reasoning="Hm.",
        text="I look.",
        calls=(WEATHER, NOW),
    ),
    "kimi_k2": Transcript(
        "kimi_k2",
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Bern", "days": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        "<|tool_calls_section_begin|>",
        special=_KIMI,
        text="I look.",
        calls=(WEATHER, NOW),
    ),
    "kimi_k2_thinking": Transcript(
        "kimi_k2",
        "<think>Hm. <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Bern", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
        "<|tool_calls_section_begin|>" + _THINK,
        special=_KIMI,
        reasoning="Hm.",
    ),
    "kimi_k3": Transcript(
        "kimi_k3",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Bern<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        "",
        special=_XTML,
        reasoning="Hm.",
        text="I look.",
    ),
    "minimax_m2": Transcript(
        "minimax_m2",
        'Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name="get_weather">\n'
        '<parameter name="city">Bern</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        "<minimax:tool_call>" + _THINK,
        marks=("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"),
        prompt_end="<think>\n",
        reasoning="Hm.",
        text="I look.",
        calls=(WEATHER, NOW),
    ),
    "harmony_call": Transcript(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        '{"city": "Bern", "days": 3}<|call|>',
        "<|channel|>analysis<|message|>",
        special=_HARMONY,
        prompt_end="<|start|>assistant",
        reasoning="Hm.",
        text="I look.",
    ),
    "harmony_recipient_first": Transcript(
        "harmony",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Bern", "days": 3}',
        "<|channel|>analysis<|message|>",
        special=_HARMONY,
        prompt_end="<|start|>assistant",
    ),
    "harmony_final": Transcript(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It is 3.<|return|>",
        "<|channel|>analysis<|message|>",
        special=_HARMONY,
        prompt_end="<|start|>assistant",
        reasoning="Hm.\n\nSo.",
        text="It is 3.",
        calls=(),
    ),
    "gemma4": Transcript(
        "gemma4",
        '<|channel>thought\nHm.<channel|>I look.<|tool_call>call:get_weather{city:<|"|>Bern<|"|>,days:3}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        "<|tool_call>call:{{ name }}<tool_call|>",
        special=("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
        reasoning="Hm.",
        text="I look.",
        calls=(WEATHER, NOW),
    ),
    "function_gemma": Transcript(
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Bern<escape>,days:3}<end_function_call>",
        "<start_function_call>call:",
        special=("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    "granite3": Transcript(
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}]',
        "<|tool_call|>",
        special=("<|tool_call|>",),
    ),
    "granite3_3_thinking": Transcript(
        "granite",
        "<think>Hm.</think><response>It is 3.</response>",
        "<|tool_call|> <think></think> <response></response>",
        special=("<|tool_call|>",),
        reasoning="Hm.",
        text="It is 3.",
        calls=(),
    ),
    "granite4": Transcript(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>',
        "<tool_call>\n",
        marks=("<tool_call>", "</tool_call>"),
    ),
    "lfm2": Transcript(
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Bern", days=3), now()]<|tool_call_end|>I look.',
        "<|tool_list_start|>",
        special=("<|tool_call_start|>", "<|tool_call_end|>"),
        text="I look.",
        calls=(WEATHER, NOW),
    ),
    "longcat": Transcript(
        "longcat",
        "<longcat_think>Hm.</longcat_think>\n<longcat_tool_call>get_weather\n"
        "<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Bern</longcat_arg_value>\n"
        "<longcat_arg_key>days</longcat_arg_key>\n<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
        "<longcat_tool_call><longcat_think></longcat_think>",
        reasoning="Hm.",
    ),
    "muse_spark": Transcript(
        "muse_spark",
        '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Bern</atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        "<atem:function_calls>",
    ),
    "minicpm5": Transcript(
        "minicpm5",
        '<function name="get_weather"><param name="city"><![CDATA[Bern]]></param><param name="days">3</param>'
        "</function>"
        '<function name="now"></function>',
        '<function name="fn"><param name="p">',
        calls=(WEATHER, NOW),
    ),
    "json": Transcript(
        "json",
        '{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}',
        "",
    ),
}
