"""Images in rendered chats: where a template puts them, their tokens, and the fork points around them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from application.ports.tokenizer import EncodedPrompt, PromptTooLong, Tokenizer
from application.ports.vision import ImageRows, ImageTokens
from domain.errors import TemplateFailed
from domain.id_row import IdRow
from domain.prefix.prompt_content import ForkKind
from domain.request.chat import ChatMessage, Role, ToolCall, message_of
from domain.request.media import Image
from domain.request.request import ChatPrompt
from tests.support.mlx.tiny_tokenizers import CHATML, byte_level, load_folder, write_folder
from tests.support.text import image_templates as templates

CAT, DOG = Image(b"cat", field="a"), Image(b"dog", field="b")
LENGTHS = {CAT: 5, DOG: 3}

Load = Callable[[str], Tokenizer]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def with_template(template: str) -> Tokenizer:
        tiny = byte_level()
        tiny.add_special_tokens([AddedToken(text, special=True) for text in ("<image>", "<see>", "</see>")])
        return load_folder(write_folder(tmp_path / "model", tiny, template))

    return with_template


def _rows(tokenizer: Tokenizer) -> ImageRows:
    id = tokenizer.special_tokens["<image>"]
    tokens = {one.digest: ImageTokens(IdRow([id] * length), one.digest) for one, length in LENGTHS.items()}
    return ImageRows("<image>", tokens)


def _message(role: Role, *pieces: str | Image, **fields: Any) -> ChatMessage:
    return replace(message_of(role, pieces), **fields)


def _user(*pieces: str | Image) -> ChatMessage:
    return _message(Role.USER, *pieces)


def _rendered(tokenizer: Tokenizer, *messages: ChatMessage, max_tokens: int | None = None) -> EncodedPrompt:
    return tokenizer.render(ChatPrompt(messages), max_tokens, images=_rows(tokenizer))


def _shown(tokenizer: Tokenizer, *messages: ChatMessage) -> str:
    """The text, with each image as its number, and every place of a placeholder inside a span."""
    found = _rendered(tokenizer, *messages)
    text, at, id = "", 0, tokenizer.special_tokens["<image>"]
    for number, span in enumerate(found.media, 1):
        before = found.token_ids[at : span.start]
        assert (span.number, id in before) == (number, False)
        text += f"{tokenizer.decode(before)}[{number}x{span.length}]"
        at = span.end
    assert id not in found.token_ids[at:]
    return text + tokenizer.decode(found.token_ids[at:])


CALL = ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("c", "look", "{}"),))
START, END = "<|im_start|>", "<|im_end|>\n"
ASKED = _user("look ", CAT, " and ", DOG, " here")


@pytest.mark.parametrize(
    ("template", "content"),
    [
        (templates.IN_PLACE, "look [1x5] and [2x3] here"),
        (templates.WITH_MARKS, "look <see>[1x5]</see> and <see>[2x3]</see> here"),
        (templates.IMAGES_FIRST, "[1x5]\n[2x3]\nlookandhere"),
        (CHATML, "look [1x5] and [2x3] here"),
    ],
    ids=["in place", "with marks", "images first", "a placeholder in the text"],
)
def test_images_stand_where_the_template_puts_them(load: Load, template: str, content: str) -> None:
    assert _shown(load(template), ASKED) == f"{START}user\n{content}{END}{START}assistant\n"


def test_a_placeholder_that_a_client_writes_is_text(load: Load) -> None:
    for template in (templates.WITH_MARKS, CHATML):
        text = _shown(load(template), _user("say <image>", CAT, "</see><image>"))
        assert "say <image>" in text
        assert "[1x5]" in text
        assert text.count("[") == 1


def test_an_image_of_a_tool_stands_as_the_template_writes_it_for_a_user(load: Load) -> None:
    result = _message(Role.TOOL, "seen: ", CAT, tool_call_id="c", is_error=True)
    text = _shown(load(templates.USERS_ONLY), _user("look"), CALL, result)
    assert f"{START}tool\nError: seen: <see>[1x5]</see>{END}" in text


def test_images_keep_their_places_in_messages_that_are_joined_or_framed(load: Load) -> None:
    late = _message(Role.SYSTEM, "late ", DOG)
    refuses_late = (
        "{% if messages[1:] | selectattr('role', 'equalto', 'system') | list %}{{ raise_exception('s') }}{% endif %}"
    )
    text = _shown(load(refuses_late + templates.IN_PLACE), _user("a", CAT), late)
    assert f"{START}user\na[1x5]{END}{START}user\n<system-reminder>\nlate [2x3]\n</system-reminder>{END}" in text
    alternates = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('alternate') }}{% endif %}{% endfor %}"
    )
    text = _shown(load(alternates + templates.IN_PLACE), _user("a", CAT), _user("b", DOG, "c"))
    assert f"{START}user\na[1x5]\n\nb[2x3]c{END}" in text


def test_a_template_that_shows_no_images_says_so(load: Load) -> None:
    with pytest.raises(TemplateFailed, match="shows no images") as refused:
        _shown(load(templates.SHOUTS), ASKED)
    assert refused.value.param == "messages"


def test_an_image_that_the_template_drops_is_refused_by_its_name(load: Load) -> None:
    drops = "{% set messages = messages[1:] if messages | length > 1 else messages %}" + templates.IN_PLACE
    with pytest.raises(TemplateFailed, match="does not show each of 2 images once") as refused:
        _shown(load(drops), _user(CAT), _user("x", DOG))
    assert refused.value.param == "a"


def test_fork_points_stay_where_the_tokens_part(load: Load) -> None:
    tokenizer = load(templates.WITH_MARKS)
    system, asked = ChatMessage(Role.SYSTEM, "Be brief."), _user("see ", CAT, " What is it?")
    found = _rendered(tokenizer, system, asked)
    forks = {fork.position: fork.kind for fork in found.fork_points}
    assert forks[len(found.token_ids)] is ForkKind.NEXT_TURN
    [span] = found.media

    def shared(*messages: ChatMessage) -> int:
        other = _rendered(tokenizer, *messages)
        return next(at for at, (a, b) in enumerate(zip(found.key_ids, other.key_ids, strict=False)) if a != b)

    assert forks[shared(system, _user("Zebra"))] is ForkKind.SYSTEM_END
    behind = shared(system, _user("see ", CAT, "Zebra"))
    assert behind >= span.end
    assert forks[behind] is ForkKind.SYSTEM_END
    more = [fork.position for fork in found.fork_points if fork.kind is ForkKind.MORE_SAID]
    assert more == [shared(system, _user("see ", CAT, " What is it?\n\nprobe"))]


def test_a_prompt_that_its_images_make_too_long_is_counted(load: Load) -> None:
    tokenizer = load(templates.IN_PLACE)
    num_tokens = len(_rendered(tokenizer, ASKED).token_ids)
    _rendered(tokenizer, ASKED, max_tokens=num_tokens)
    with pytest.raises(PromptTooLong) as error:
        _rendered(tokenizer, ASKED, max_tokens=num_tokens - 1)
    assert (error.value.num_tokens, error.value.is_exact) == (num_tokens, True)
