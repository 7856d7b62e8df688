"""Fork points: the tokens up to one are shared with the later request it stands for, and no more of them."""

from copy import copy
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.hf_tokenizer import HfTokenizer
from adapters.tokenizers.library import load_tokenizer, rust_tokenizer
from adapters.tokenizers.text_codec import PART_CHARS, EncodedText, TextCodec
from application.ports.tokenizer import EncodedPrompt, Tokenizer
from domain.prefix.prompt_content import ForkKind
from domain.prefix.snapshot_policy import END_GAP
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from domain.request.request import ChatPrompt
from tests.support.effort import scaled
from tests.support.mlx.tiny_tokenizers import FAMILIES, byte_level, load_folder, write_folder
from tests.support.processes.counting_rust import CountingRust
from tests.support.text import templates

_SYSTEM = ChatMessage(Role.SYSTEM, "You are a helpful assistant. Answer briefly.")
_TOOL = ToolSpec("get_time", "Get the time in a city", {"type": "object", "properties": {"city": {"type": "string"}}})


def _user(text: str) -> ChatMessage:
    return ChatMessage(Role.USER, text)


def _assistant(text: str, reasoning: str | None = None) -> ChatMessage:
    return ChatMessage(Role.ASSISTANT, text, reasoning=reasoning)


def _shared(first: EncodedPrompt, second: EncodedPrompt) -> int:
    pairs = zip(first.token_ids, second.token_ids, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _of(prompt: EncodedPrompt, kind: ForkKind) -> list[int]:
    return [point.position for point in prompt.fork_points if point.kind is kind]


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    folder = embedded_folder(EMBEDDED_IDS[0])
    assert folder is not None
    return load_folder(folder)


def _tiny(tmp_path: Path, template: str) -> Tokenizer:
    return load_folder(write_folder(tmp_path, byte_level(), template))


@pytest.mark.parametrize("tools", [(), (_TOOL,)])
def test_the_next_turn_branches_at_the_prompts_end(demo: Tokenizer, tools: tuple[ToolSpec, ...]) -> None:
    messages = (_SYSTEM, _user("Hi"), _assistant("Hello!"), _user("What time is it?"))
    prompt = demo.render(ChatPrompt(messages, tools))
    after = demo.render(ChatPrompt((*messages, _assistant("Noon."), _user("Thanks")), tools))
    assert _of(prompt, ForkKind.NEXT_TURN) == [len(prompt.token_ids)]
    assert _shared(prompt, after) == len(prompt.token_ids)


@pytest.mark.parametrize("tools", [(), (_TOOL,)])
def test_a_question_that_goes_on_before_an_answer_branches_at_its_end(
    demo: Tokenizer, tools: tuple[ToolSpec, ...]
) -> None:
    question = "What time is it?"
    prompt = demo.render(ChatPrompt((_SYSTEM, _user(question)), tools))
    more = demo.render(ChatPrompt((_SYSTEM, _user(f"{question}\n\nAre you there?")), tools))
    another = demo.render(ChatPrompt((_SYSTEM, _user(question), _user("Are you there?")), tools))
    [at] = _of(prompt, ForkKind.MORE_SAID)
    assert at == _shared(prompt, more) < len(prompt.token_ids)
    assert at <= _shared(prompt, another) < at + END_GAP


def test_a_result_of_a_tool_with_more_behind_it_branches_where_the_generation_prompt_begins(demo: Tokenizer) -> None:
    call = ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("1", "get_time", "{}"),))
    messages = (_SYSTEM, _user("What time is it?"), call, ChatMessage(Role.TOOL, "12:00", tool_call_id="1"))
    prompt = demo.render(ChatPrompt(messages, (_TOOL,)))
    more = demo.render(ChatPrompt((*messages, _user("Are you there?")), (_TOOL,)))
    assert _of(prompt, ForkKind.MORE_SAID) == [_shared(prompt, more)]
    assert _shared(prompt, more) < len(prompt.token_ids)


def test_an_agents_own_message_behind_a_question_hides_no_branch(demo: Tokenizer) -> None:
    """Claude Code lists its agents behind the question, and a further try goes on in the question or behind them."""
    context, agents = "<system-reminder>\nSunday\n</system-reminder>\n", ChatMessage(Role.SYSTEM, "Agents: none.")
    first = demo.render(ChatPrompt((_SYSTEM, _user(f"{context}Say hi."), agents), (_TOOL,)))
    tries = [
        (_SYSTEM, _user(f"{context}Say hi.\n\nGo on."), agents),
        (_SYSTEM, _user(f"{context}Say hi."), agents, _user("Go on.")),
    ]
    shared = [_shared(first, demo.render(ChatPrompt(messages, (_TOOL,)))) for messages in tries]
    assert _of(first, ForkKind.MORE_SAID) == shared
    session = demo.render(ChatPrompt((_SYSTEM, _user(f"{context}Which day?"), agents), (_TOOL,)))
    joined = (_SYSTEM, _user(f"{context}Say hi.\n\n<system-reminder>\nAgents: none.\n</system-reminder>\n\nGo on."))
    for messages in (tries[1], joined):
        again = demo.render(ChatPrompt(messages, (_TOOL,)))
        assert _shared(first, session) in _of(again, ForkKind.SYSTEM_END)


def test_a_template_that_takes_no_two_questions_branches_where_the_merged_one_goes_on(tmp_path: Path) -> None:
    tokenizer = _tiny(tmp_path, templates.ALTERNATES)
    messages = (_user("Hi"), _assistant("Hello!"), _user("What time is it?"))
    prompt = tokenizer.render(ChatPrompt(messages))
    more = tokenizer.render(ChatPrompt((*messages, _user("Are you there?"))))
    assert _of(prompt, ForkKind.MORE_SAID) == [_shared(prompt, more)]
    assert _shared(prompt, more) < len(prompt.token_ids)


def test_the_system_part_ends_where_another_chat_parts(demo: Tokenizer) -> None:
    prompt = demo.render(ChatPrompt((_SYSTEM, _user("Hi"), _assistant("Hello!"), _user("What?")), (_TOOL,)))
    other = demo.render(ChatPrompt((_SYSTEM, _user("Quite another chat")), (_TOOL,)))
    assert _of(prompt, ForkKind.SYSTEM_END) == [_shared(prompt, other)]


def test_the_probe_is_never_the_beginning_of_the_real_message(demo: Tokenizer) -> None:
    for text in ("probe", "Probe it", "Zebra", "7 is a number", " probe", "P"):
        prompt = demo.render(ChatPrompt((_SYSTEM, _user(text))))
        other = demo.render(ChatPrompt((_SYSTEM, _user("Quite another chat"))))
        assert _of(prompt, ForkKind.SYSTEM_END) == [_shared(prompt, other)], text


def test_turns_branch_where_a_question_is_asked_anew(demo: Tokenizer) -> None:
    messages = [_SYSTEM]
    for number in range(6):
        messages += [_user(f"Question {number}?"), _assistant(f"Answer {number}.")]
    messages.append(_user("Last one?"))
    prompt = demo.render(ChatPrompt(tuple(messages)))
    anew = [demo.render(ChatPrompt((*messages[:at], _user("Why?")))) for at in (9, 11, 13)]
    assert _of(prompt, ForkKind.TURN) == [_shared(prompt, other) for other in anew]


def test_a_template_that_drops_earlier_reasoning_branches_before_it(tmp_path: Path) -> None:
    tokenizer = _tiny(tmp_path, templates.DROPS_REASONING)
    call = ChatMessage(Role.ASSISTANT, reasoning="long thoughts", tool_calls=(ToolCall("1", "get_time", "{}"),))
    messages = (_SYSTEM, _user("Hi"), call, ChatMessage(Role.TOOL, "12:00", tool_call_id="1"))
    prompt = tokenizer.render(ChatPrompt(messages, (_TOOL,)))
    next_question = tokenizer.render(ChatPrompt((*messages, _assistant("Noon."), _user("Thanks")), (_TOOL,)))
    again = ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("2", "get_time", "{}"),))
    next_call = tokenizer.render(
        ChatPrompt((*messages, again, ChatMessage(Role.TOOL, "1", tool_call_id="2")), (_TOOL,))
    )
    dropped, kept = _of(prompt, ForkKind.NEXT_TURN)
    assert dropped == _shared(prompt, next_question) < len(prompt.token_ids)
    assert kept == _shared(prompt, next_call) == len(prompt.token_ids)


def test_an_empty_thought_in_the_generation_prompt_is_where_the_next_turn_parts(tmp_path: Path) -> None:
    tokenizer = _tiny(tmp_path, templates.DROPS_REASONING)
    messages = (_user("Hi"),)
    prompt = tokenizer.render(ChatPrompt(messages, (), {"enable_thinking": False}))
    after = tokenizer.render(ChatPrompt((*messages, _assistant("Yes"), _user("No")), (), {"enable_thinking": False}))
    [position] = _of(prompt, ForkKind.NEXT_TURN)
    assert position == _shared(prompt, after)
    assert tokenizer.decode(prompt.token_ids[position:]) == "<think>\n\n</think>\n\n"


def test_a_chat_that_ends_with_an_answer_branches_after_it(demo: Tokenizer) -> None:
    messages = (_user("Hi"), _assistant("Hello"))
    prompt = demo.render(ChatPrompt(messages))
    after = demo.render(ChatPrompt((*messages, _user("What?"))))
    assert _of(prompt, ForkKind.NEXT_TURN) == [_shared(prompt, after)]


_WORDS = st.sampled_from(
    [
        "The code of Alice is 48213.",
        "naïve café ",
        "\n",
        "\n\n",
        "   ",
        "😀",
        "<|im_end|>",
        "don't",
        "x" * 40,
        "漢字",
        ".",
    ]
)


@pytest.mark.parametrize("name", sorted(FAMILIES))
@given(words=st.lists(_WORDS, min_size=150, max_size=300), cut=st.integers(0, 9))
@settings(deadline=None, max_examples=scaled(40))
def test_a_question_that_ends_anywhere_branches_where_its_tokens_part(name: str, words: list[str], cut: int) -> None:
    """Also in the middle of a word, a run of spaces or a character's bytes, and behind parts that both texts share."""
    tokenizer = _tokenizer(name)
    text = "".join(words)
    question = text[: len(text) - cut]
    for earlier in ((), (_user("fox " * 600), _assistant(text), _user("漢" * PART_CHARS), _assistant("Hi!"))):
        prompt = tokenizer.render(ChatPrompt((*earlier, _user(question))))
        more = tokenizer.render(ChatPrompt((*earlier, _user(f"{question}\n\nprobe"))))
        assert _of(prompt, ForkKind.MORE_SAID) == [_shared(prompt, more)]


_made: dict[str, Tokenizer] = {}


def _tokenizer(name: str) -> Tokenizer:
    if name not in _made:
        with TemporaryDirectory() as folder:
            _made[name] = load_folder(write_folder(Path(folder), FAMILIES[name](), templates.DROPS_REASONING))
    return _made[name]


@pytest.mark.parametrize(
    "before",
    [
        (_SYSTEM, _user("<environment>\n/work\n</environment>")),
        (_SYSTEM, _user("<environment>\n/work\n</environment>\n\n")),
        (_user("<system-reminder>\nSunday\n</system-reminder>\n"),),
    ],
)
@pytest.mark.parametrize("is_in_one", [False, True])
def test_another_first_question_branches_behind_what_an_agent_puts_before_it(
    demo: Tokenizer, before: tuple[ChatMessage, ...], is_in_one: bool
) -> None:
    *earlier, told = before

    def asked(question: str) -> ChatPrompt:
        messages = (_user(f"{told.content}\n{question}"),) if is_in_one else (told, _user(question))
        late = ChatMessage(Role.SYSTEM, "Agents: none.")
        return ChatPrompt((*earlier, *messages, late), (_TOOL,))

    first = demo.render(asked("Say hi."))
    shared = _shared(first, demo.render(asked("Which day is it?")))
    assert shared - 2 <= max(_of(first, ForkKind.SYSTEM_END)) <= shared
    answered = asked("Say hi.").messages, (_assistant("Hi."), _user("Now?"))
    later = demo.render(ChatPrompt((*answered[0], *answered[1]), (_TOOL,)))
    assert max(_of(later, ForkKind.SYSTEM_END)) == max(_of(first, ForkKind.SYSTEM_END))


class _RecordingCodec(TextCodec):
    """Keeps the length of each text that it encodes."""

    def __init__(self, folder: Path) -> None:
        python = load_tokenizer(str(folder))
        super().__init__(python, rust_tokenizer(python))
        self.num_chars: list[int] = []

    def encode_parts(self, text: str, *, max_tokens: int | None = None, owner: str = "") -> EncodedText:
        self.num_chars.append(len(text))
        return super().encode_parts(text, max_tokens=max_tokens, owner=owner)


def test_of_a_probe_no_more_is_encoded_than_a_part_before_the_point_where_it_diverges(tmp_path: Path) -> None:
    plain = load_folder(write_folder(tmp_path, FAMILIES["byte_level"]()))
    assert isinstance(plain, HfTokenizer)
    tokenizer, codec = copy(plain), _RecordingCodec(tmp_path)
    vars(tokenizer)["_codec"] = codec
    turns = [message for at in range(40) for message in (_user("x" * PART_CHARS), _assistant(f"Hello {at}"))]
    prompt = tokenizer.render(ChatPrompt((_SYSTEM, *turns, _user("Hi"))))
    whole, *probes = codec.num_chars
    assert whole > 40 * PART_CHARS
    assert len(probes) >= len(prompt.fork_points) >= 5
    assert max(probes) < 2 * PART_CHARS


def test_a_probe_is_encoded_for_who_sent_the_prompt_and_nobody_else_finds_it_done(tmp_path: Path):
    plain = load_folder(write_folder(tmp_path, FAMILIES["byte_level"]()))
    assert isinstance(plain, HfTokenizer)
    tokenizer = copy(plain)
    python = load_tokenizer(str(tmp_path))
    rust = CountingRust(rust_tokenizer(python))  # type: ignore[arg-type]
    vars(tokenizer)["_codec"] = TextCodec(python, rust)  # type: ignore[arg-type]
    prompt = ChatPrompt((_user("漢" * 5000), _assistant("fox " * 600), _user("漢" * 5000)))
    num_chars: list[int] = []
    for salt in ("one", "other", "one"):
        rust.num_chars = 0
        tokenizer.render(prompt, salt=salt)
        num_chars.append(rust.num_chars)
    first, other, again = num_chars
    assert other == first
    assert again < first
