"""The chat generator still writes, seed for seed, what the embedded models were trained and evaluated on.

The digests were recorded from the scripts that trained them, over the material of tests/support/mlx/demo_chats.py.
"""

import hashlib
import json
from collections.abc import Sequence

import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.loader import HfTokenizerLoader
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from domain.request.request import ChatPrompt
from tests.support.mlx.demo_chats import material, tokenizer
from training.tasks import TASKS, Draw, Turn, plain_text, write_conversation
from training.tasks.rendering import system_part, turn_pieces
from training.tasks.tool_use import tool_call, tool_definition

_CONVERSATIONS = {
    256: "0a8fbd263ef4aab1cfd2d8294024940d51c19870efd6ab3bb2dc6417f507a791",
    1024: "2c5494151cc6512dceb960cab627940d4c0ee00c4c8e7c78a237ac319b8a4a98",
    4096: "387f3c55209ad971daa13357dfa0b542a5ab51eba2517152db357cd5e58c18c7",
}
_PLAIN_TEXTS = {
    256: "e8ca8135bdd31a03926b4bfff5889e53c69f70956b70d14afd2df4ee16f40c7a",
    1024: "d992b7154f8ef3cfe5dd95c827c4186cd7f42d848070a3c47611462c62f149d6",
}
_TASKS = {
    "kv": "33012b0b2243d3d230827c3cadad4c84d8e88b0e9e6fa41adf8bf1ed00722359",
    "needle": "8a89573680815e0e4ea5db55f1534c1c2d2754e4e1aab3f9eeb8e0942944339f",
    "memory": "ab32b04f653d7d28fceab642b921ecc25546bba1e58bb23cfe167b20e88a063e",
    "copy": "89b05e162a3a66ad7703dc39b2c3ec9db8ac57a59c20e10569e0f58599eb1857",
    "arith": "a66241fa6f0a5be73d7a36d6f088d95e41f32ad49fa422841ebf85c62c0703b6",
    "listq": "93274915f0f54c801f53b8f73b86124af3538087a93cc526e4daec7ab779c780",
    "jsonx": "389e4807016f68e46b8cf30ad1b184adb8645836e8087483c51c2ff63ca3885f",
    "transform": "3f0151cde44db4ce6ef6f02386c5801ff63c8d9da89885714bf722a7ed2ac02b",
    "talk": "425e6c2f501f4a23fa54f661dc55bd7c12dec1604d5e31c368b7caf5415a75ef",
    "define": "dc27971634fde1ae344e47b135df5c6ed0aba6db91c3831a8d3433c1f1cf4a36",
    "cont": "66a9af7853dac9b777cd63ef18c8d068f32d918eba90edfaecdaceb9642139e1",
}


def _encode(text: str) -> Sequence[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("num_tokens", _CONVERSATIONS)
def test_conversations_are_those_of_the_training_runs(num_tokens: int) -> None:
    digest = hashlib.sha256()
    for seed in range(40 if num_tokens < 4096 else 10):
        written = write_conversation(Draw(seed, material()), num_tokens, _encode)
        assert len(written.ids) == len(written.is_learned) <= num_tokens
        digest.update(json.dumps([written.ids, written.is_learned, written.answers]).encode())
    assert digest.hexdigest() == _CONVERSATIONS[num_tokens]


@pytest.mark.parametrize("num_tokens", _PLAIN_TEXTS)
def test_plain_texts_are_those_of_the_training_runs(num_tokens: int) -> None:
    written = plain_text(Draw(num_tokens, material()), num_tokens, _encode, 0)
    assert hashlib.sha256(json.dumps(written.ids).encode()).hexdigest() == _PLAIN_TEXTS[num_tokens]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_each_task_is_that_of_the_training_runs(task: object) -> None:
    digest = hashlib.sha256()
    draw = Draw(7, material())
    for number in range(100):
        episode = task.write(draw, (120, 300, 1500)[number % 3])  # type: ignore[attr-defined]
        turns = [(turn.role, turn.text, turn.thought) for turn in episode.turns] if episode else None
        digest.update(json.dumps(turns).encode())
    assert digest.hexdigest() == _TASKS[task.name]  # type: ignore[attr-defined]


def test_training_text_is_what_the_chat_template_renders() -> None:
    """Otherwise the model would be asked in another form than it was taught."""
    model = HfTokenizerLoader().load(ModelSource(EMBEDDED_IDS[0], str(embedded_folder(EMBEDDED_IDS[0]))))
    spec = tool_definition("get_time")
    call = tool_call("get_time", {"city": "Oslo"})
    turns = [Turn("user", "What time is it in Oslo?"), Turn("assistant", call), Turn("tool", '{"time": "12:00"}')]
    taught = system_part("Be helpful.", [spec])
    taught += "".join(piece.text for turn in turns for piece in turn_pieces(turn, with_thought=False))
    messages = (
        ChatMessage(Role.SYSTEM, "Be helpful."),
        ChatMessage(Role.USER, turns[0].text),
        ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("1", "get_time", '{"city": "Oslo"}'),)),
        ChatMessage(Role.TOOL, turns[2].text, tool_call_id="1"),
    )
    tool = ToolSpec("get_time", str(spec["description"]), spec["parameters"])  # type: ignore[arg-type]
    rendered = model.decode(model.render(ChatPrompt(messages, (tool,))).token_ids)
    assert rendered == taught + "<|im_start|>assistant\n"
