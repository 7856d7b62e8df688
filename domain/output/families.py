"""The known families, most specific first, with the form in which their models write tool calls."""

import re
from dataclasses import replace

from domain.output.family import Channels, Family, ReasoningTags, Section, Values, WrittenCalls, WrittenParameters
from domain.output.json_calls import JsonCalls, NamedCalls
from domain.output.literal_calls import LiteralCalls
from domain.output.tagged_calls import TaggedCalls, Tags

_JSON = JsonCalls()
_PYTHON_LIST = LiteralCalls(('"""', "'''", '"', "'"), "=", has_escapes=True, is_list=True)


def _gemma(quote: str) -> LiteralCalls:
    return LiteralCalls((quote,), ":", before_name="call:", brackets=("{", "}"))


def _key_value(prefix: str = "") -> TaggedCalls:
    """Keys and values in tags of their own, after a name that nothing ends."""
    key, value = f"{prefix}arg_key>", f"{prefix}arg_value>"
    return TaggedCalls(Tags(f"<{key}", f"</{key}", f"</{value}", value_open=f"<{value}"))


def _invoke(prefix: str = "") -> TaggedCalls:
    """Names as attributes of `invoke` and `parameter` tags."""
    parameter = Tags(f"<{prefix}parameter", ">", f"</{prefix}parameter>")
    return TaggedCalls(parameter, f"<{prefix}invoke", ">", f"</{prefix}invoke>")


_KIMI_CALL = NamedCalls(
    re.compile(r"(?P<id>(?:functions\.)?(?P<name>[^\s:]+):[0-9]+)\s*<\|tool_call_argument_begin\|>"),
    ("<|tool_call_argument_begin|>",),
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
)
_KIMI_K3_CALL = TaggedCalls(
    Tags("<|open|>argument", "<|sep|>", "<|close|>argument<|sep|>"),
    "<|open|>call",
    "<|sep|>",
    "<|close|>call<|sep|>",
    whole=Tags("<|open|>json", "<|sep|>", "<|close|>json<|sep|>"),
)
_DEEPSEEK_CALL = NamedCalls(
    re.compile(r"(?:function\s*<｜tool▁sep｜>)?(?P<name>[^\s<]+)\s*(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?)?"),
    ("<｜tool▁sep｜>",),
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
)
_MISTRAL_CALL = NamedCalls(
    re.compile(r"(?P<name>[\w.-]+)\s*(?:\[CALL_ID\](?P<id>\w+))?\s*(?:\[ARGS\])?"), ("[CALL_ID]", "[ARGS]")
)
_QWEN_CALL = TaggedCalls(
    Tags("<parameter=", ">", "</parameter>"), "<function=", ">", "</function>", around_value=("\n", "\n")
)
_MINICPM_CALL = TaggedCalls(Tags("<param ", ">", "</param>"), "<function ", ">", "</function>", ("<![CDATA[", "]]>"))

_TAGGED_JSON = WrittenCalls(
    mark="<tool_call>",
    opening='\n{"name": "',
    before_arguments='", "arguments": ',
    closing="}\n</tool_call>",
    between="\n",
)
_QWEN_XML = WrittenCalls(
    mark="<tool_call>",
    opening="\n<function=",
    before_arguments=">",
    closing="\n</function>\n</tool_call>",
    between="\n",
    parameters=WrittenParameters(
        Values.RAW, open="\n<parameter=", before_value=">\n", close="\n</parameter>", stop="</parameter>"
    ),
)
_MINICPM_XML = WrittenCalls(
    mark='<function name="',
    before_arguments='">',
    closing="</function>",
    parameters=WrittenParameters(
        Values.RAW,
        open='<param name="',
        before_value='">',
        close="</param>",
        before_string='"><![CDATA[',
        after_string="]]></param>",
        stop="</param>",
    ),
)
_LFM_PYTHON = WrittenCalls(
    first="<|tool_call_start|>[",
    before_arguments="(",
    closing=")",
    between=", ",
    last="]<|tool_call_end|>",
    parameters=WrittenParameters(Values.JSON, before_value="=", between=", "),
)

_BARE_JSON = WrittenCalls(
    opening='{"name": "', before_arguments='", "arguments": ', closing="}", is_marked=False, among_text=False
)


def _key_value_writes(prefix: str = "") -> WrittenCalls:
    """Returns the written form of `_key_value`."""
    mark, close = f"<{prefix}tool_call>", f"</{prefix}arg_value>"
    return WrittenCalls(
        mark=mark,
        before_arguments="",
        closing=f"\n</{prefix}tool_call>",
        parameters=WrittenParameters(
            Values.RAW,
            open=f"\n<{prefix}arg_key>",
            before_value=f"</{prefix}arg_key>\n<{prefix}arg_value>",
            close=close,
            stop=close,
        ),
    )


def _invoke_writes(section: str, prefix: str = "", *, marks_strings: bool = False) -> WrittenCalls:
    """Returns the written form of `_invoke`, in a section of this name."""
    close = f"</{prefix}parameter>"
    return WrittenCalls(
        first=f"<{section}>",
        mark=f'\n<{prefix}invoke name="',
        before_arguments='">',
        closing=f"\n</{prefix}invoke>",
        last=f"\n</{section}>",
        parameters=WrittenParameters(
            Values.RAW,
            open=f'\n<{prefix}parameter name="',
            before_value='" string="false">' if marks_strings else '">',
            before_string='" string="true">' if marks_strings else "",
            close=close,
            stop=close,
        ),
    )


def _gemma_writes(open: str, close: str, quote: str) -> WrittenCalls:
    return WrittenCalls(
        mark=open,
        opening="call:",
        before_arguments="{",
        closing=f"}}{close}",
        parameters=WrittenParameters(Values.LITERAL, before_value=":", between=",", quote=quote),
    )


def _json_list(mark: str, closing: str = "", needs: str = "") -> WrittenCalls:
    """A list of JSON objects behind a mark."""
    return WrittenCalls(
        first=f"{mark}[",
        opening='{"name": "',
        before_arguments='", "arguments": ',
        closing="}",
        between=", ",
        last=f"]{closing}",
        needs=needs,
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        "harmony",
        "<|channel|>commentary to=functions.NAME",
        (("<|channel|>", "<|message|>"),),
        channels=Channels("<|start|>", "<|channel|>", "<|message|>", ("<|end|>", "<|call|>", "<|return|>")),
        writes=(
            WrittenCalls(
                mark="<|channel|>commentary to=functions.",
                before_arguments=" <|constrain|>json<|message|>",
                closing="<|call|>",
                between="<|start|>assistant",
                among_text=False,
            ),
        ),
    ),
    Family(
        "kimi_k3",
        "<|open|>call tool=NAME<|sep|><|open|>argument key=KEY",
        (("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),),
        (Section("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", (_KIMI_K3_CALL,)),),
        writes=(
            WrittenCalls(
                first="<|open|>tools<|sep|>",
                mark='<|open|>call tool="',
                before_arguments='"<|sep|><|open|>json<|sep|>',
                closing="<|close|>json<|sep|><|close|>call<|sep|>",
                last="<|close|>tools<|sep|>",
                among_text=False,
            ),
        ),
    ),
    Family(
        "minimax_m2",
        "<invoke name=NAME><parameter name=KEY>",
        (("<minimax:tool_call>",),),
        (Section("<minimax:tool_call>", "</minimax:tool_call>", (_invoke(),)),),
        writes=(_invoke_writes("minimax:tool_call"),),
    ),
    Family(
        "deepseek_v32",
        "<｜DSML｜invoke name=NAME><｜DSML｜parameter name=KEY>",
        (("｜DSML｜",),),
        (Section("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", (_invoke("｜DSML｜"),)),),
        writes=(_invoke_writes("｜DSML｜function_calls", "｜DSML｜", marks_strings=True),),
    ),
    Family(
        "gemma4",
        "<|tool_call>call:NAME{KEY:VALUE}",
        (("<|tool_call>", "<tool_call|>"),),
        (Section("<|tool_call>", "<tool_call|>", (_gemma('<|"|>'),)),),
        writes=(_gemma_writes("<|tool_call>", "<tool_call|>", '<|"|>'),),
    ),
    Family(
        "function_gemma",
        "<start_function_call>call:NAME{KEY:VALUE}",
        (("<start_function_call>",),),
        (Section("<start_function_call>", "<end_function_call>", (_gemma("<escape>"),)),),
        writes=(_gemma_writes("<start_function_call>", "<end_function_call>", "<escape>"),),
    ),
    Family(
        "longcat",
        "<longcat_tool_call>NAME<longcat_arg_key>KEY",
        (("<longcat_tool_call>",),),
        (Section("<longcat_tool_call>", "</longcat_tool_call>", (_JSON, _key_value("longcat_"))),),
        writes=(_key_value_writes("longcat_"),),
    ),
    Family(
        "glm",
        "<tool_call>NAME<arg_key>KEY",
        (("<arg_key>",),),
        (Section("<tool_call>", "</tool_call>", (_JSON, _key_value())),),
        writes=(_key_value_writes(),),
    ),
    Family(
        "muse_spark",
        "<atem:invoke name=NAME><atem:parameter name=KEY>",
        (("<atem:function_calls>",),),
        (Section("<atem:function_calls>", "</atem:function_calls>", (_invoke("atem:"),)),),
        writes=(_invoke_writes("atem:function_calls", "atem:"),),
    ),
    Family(
        "lfm2",
        "<|tool_call_start|>[NAME(KEY=VALUE)]",
        (("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        (Section("<|tool_call_start|>", "<|tool_call_end|>", (_PYTHON_LIST,)),),
        writes=(_LFM_PYTHON,),
    ),
    Family(
        "minicpm5",
        "<function name=NAME><param name=KEY>",
        (('<function name="', '<param name="'),),
        (Section("", "", (_MINICPM_CALL,)),),
        writes=(_MINICPM_XML,),
    ),
    Family(
        "qwen_xml",
        "<function=NAME><parameter=KEY>",
        (("<function=", "<parameter="),),
        (Section("<tool_call>", "</tool_call>", (_JSON, _QWEN_CALL)),),
        writes=(_QWEN_XML,),
    ),
    Family(
        "kimi_k2",
        "<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>JSON",
        (("<|tool_calls_section_begin|>",),),
        (Section("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", (_KIMI_CALL,)),),
        writes=(
            WrittenCalls(
                first="<|tool_calls_section_begin|>",
                mark="<|tool_call_begin|>",
                opening="functions.",
                number=":",
                before_arguments="<|tool_call_argument_begin|>",
                closing="<|tool_call_end|>",
                last="<|tool_calls_section_end|>",
            ),
        ),
    ),
    Family(
        "deepseek",
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON",
        (("<｜tool▁calls▁begin｜>",),),
        (Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", (_DEEPSEEK_CALL,)),),
        writes=(
            WrittenCalls(
                first="<｜tool▁calls▁begin｜>",
                mark="<｜tool▁call▁begin｜>",
                before_arguments="<｜tool▁sep｜>",
                closing="<｜tool▁call▁end｜>",
                last="<｜tool▁calls▁end｜>",
            ),
        ),
    ),
    Family(
        "mistral",
        "[TOOL_CALLS]NAME[ARGS]JSON, [TOOL_CALLS][JSON]",
        (("[TOOL_CALLS]",),),
        (Section("[TOOL_CALLS]", "", (_JSON, _MISTRAL_CALL)),),
        id_chars=9,
        writes=(
            WrittenCalls(mark="[TOOL_CALLS]", before_arguments="[ARGS]", needs="[ARGS]"),
            _json_list("[TOOL_CALLS]"),
        ),
    ),
    Family(
        "granite",
        "<|tool_call|>[JSON]",
        (("<|tool_call|>",),),
        (Section("<|tool_call|>", "<|/tool_call|>", (_JSON,)), Section("<tool_call>", "</tool_call>", (_JSON,))),
        writes=(_json_list("<|tool_call|>", needs="<|tool_call|>"), _TAGGED_JSON),
    ),
    Family(
        "hermes",
        "<tool_call>JSON",
        (("<tool_call>",),),
        (Section("<tool_call>", "</tool_call>", (_JSON, _QWEN_CALL)),),
        writes=(_TAGGED_JSON,),
    ),
    Family(
        "llama3",
        "<|python_tag|>JSON, bare JSON, [NAME(KEY=VALUE)]",
        (("<|python_tag|>",), ("<|python_start|>",), ("<|eom_id|>",)),
        (
            Section("<|python_tag|>", "", (_JSON,)),
            Section("<|python_start|>", "<|python_end|>", (_JSON, _PYTHON_LIST)),
        ),
        bare=(_JSON, _PYTHON_LIST),
        writes=(replace(_BARE_JSON, before_arguments='", "parameters": ', between="; "),),
    ),
    Family("json", "bare JSON", bare=(_JSON, _PYTHON_LIST), writes=(replace(_BARE_JSON, between=","),)),
)

REASONING: tuple[ReasoningTags, ...] = (
    ReasoningTags("<think>", "</think>", ("<response>", "</response>")),
    ReasoningTags("<think>", "</think>", ("<answer>", "</answer>")),
    ReasoningTags("<think>", "</think>"),
    ReasoningTags("<longcat_think>", "</longcat_think>"),
    ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningTags("◁think▷", "◁/think▷"),
    ReasoningTags("<|channel>thought", "<channel|>"),
    ReasoningTags(
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    ReasoningTags("Here is my thought process:", "Here is my response:"),
)
