"""The embedded models' own format, on their own tokenizer: what their training shows is what their parser reads."""

from typing import Any

import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import Tokenizer
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.reasoning_budget import ReasoningMarks
from domain.request.request import ChatPrompt
from domain.request.stream import ContentDelta
from tests.support.http.replay.transcripts import Told, told
from tests.support.text.output_parsers import numbered_ids
from training.tasks.tool_use import tool_definition

QUESTION = ChatMessage(Role.USER, "What is the weather in Bern?")


def _tool(name: str) -> ToolSpec:
    shown = tool_definition(name)
    return ToolSpec(name, str(shown["description"]), shown["parameters"])  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=EMBEDDED_IDS)
def model(request: pytest.FixtureRequest) -> Tokenizer:
    return HfTokenizerLoader().load(ModelSource(request.param, str(embedded_folder(request.param))))


def _told(model: Tokenizer, prompt: ChatPrompt, answer: str) -> Told:
    parser = model.output_parser(prompt, model.render(prompt).token_ids, numbered_ids())
    deltas: list[ContentDelta] = []
    for token_id in model.encode(answer).token_ids:
        deltas += parser.feed(token_id)
    return told([*deltas, *parser.finish()])


@pytest.mark.parametrize(
    ("prefilled", "answer", "found"),
    [
        ("It is", " sunny in Bern.", Told(text=" sunny in Bern.")),
        ("It is ", "sunny.", Told(text="sunny.")),
        ("It is", " so <think>", Told(text=" so <think>")),
        ("<think>\nWell,", " yes.\n</think>\n\nSunny.", Told(" yes.", "Sunny.")),
    ],
)
def test_only_what_follows_a_text_that_the_client_began_is_delivered(
    model: Tokenizer, prefilled: str, answer: str, found: Told
) -> None:
    tools = (_tool("get_weather"),)
    prompt = ChatPrompt((QUESTION, ChatMessage(Role.ASSISTANT, prefilled)), tools, continues=True)
    assert _told(model, prompt, answer) == found


def test_what_ends_the_reasoning_is_known_by_its_token(model: Tokenizer) -> None:
    def marks(**kwargs: Any) -> ReasoningMarks | None:
        prompt = ChatPrompt((QUESTION,), template_kwargs=kwargs)
        return model.reasoning_marks(prompt, model.render(prompt).token_ids)

    (opening,), (end,) = (model.encode(tag).token_ids for tag in ("<think>", "</think>"))
    assert marks() == ReasoningMarks((opening,), (end,), is_open=False)
    assert marks(enable_thinking=True) == ReasoningMarks((opening,), (end,), is_open=True)
