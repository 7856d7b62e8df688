"""A long chat has the ids and the fork points that it has where its template is always rendered whole."""

import pytest
from hypothesis import given, settings

from application.ports.tokenizer import EncodedPrompt, Tokenizer
from domain.chat import ChatMessage, ToolSpec
from domain.errors import TemplateFailed
from domain.request import ChatPrompt
from tests.support.effort import scaled
from tests.support.template_pieces import TOOLS, WHOLE, chats
from tests.support.tiny_tokenizers import byte_level, load_folder, write_folder


@pytest.fixture(scope="module", params=WHOLE)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """Of the second it is not known which of several templates is rendered."""
    folder, rust, template = tmp_path_factory.mktemp("models"), byte_level(), WHOLE[request.param]
    several = [{"name": "default", "template": template}, {"name": "other", "template": ""}]
    return (
        load_folder(write_folder(folder / "one", rust, template)),
        load_folder(write_folder(folder / "several", rust, None, chat_template=several)),
    )


@settings(max_examples=scaled(30))
@given(chat=chats(), tools=TOOLS)
def test_ids_and_fork_points(
    both: tuple[Tokenizer, Tokenizer], chat: tuple[ChatMessage, ...], tools: tuple[ToolSpec, ...]
):
    found: list[EncodedPrompt | str] = []
    for tokenizer in both:
        try:
            found.append(tokenizer.render(ChatPrompt(chat, tools)))
        except TemplateFailed as failed:
            found.append(str(failed))
    assert found[0] == found[1]
