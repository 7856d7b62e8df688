"""Models that see, served as they ship: `cairn-demo-vision` answers about pictures and looks at each of them once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from adapters.huggingface.model_folder import SEER_ID
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.models.capability import Capability
from interfaces.cli.server.server_process import EXAMPLES
from tests.support.http.images import openai_part
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.mlx.vision.drawn_pictures import NUMBER, SHAPES, SIGN, WORD
from tests.support.patience import PATIENCE_S

pytest.importorskip("mlx_vlm")


@contextmanager
def served(store: Path | None = None) -> Iterator[LiveService]:
    kept = StoreSettings(kind="off")
    if store is not None:
        kept = StoreSettings(kind="lmdb", dir=str(store), quota=ByteSize.parse("64MiB"))
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=SEER_ID, download=False),
        engine=EngineSettings(backend="mlx"),
        store=kept,
    )
    with live_service(settings) as running:
        yield running


@pytest.fixture(scope="module")
def live() -> Iterator[LiveService]:
    with served() as running:
        yield running


class Answered(NamedTuple):
    """`reused`: tokens of the prompt. `seen`: passes of the tower."""

    text: str
    num_tokens: int
    reused: int
    seen: int


def ask(live: LiveService, messages: Sequence[dict[str, Any]], **fields: Any) -> Answered:
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, **fields}
    response = httpx.post(f"{live.base_url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    answer = response.json()
    known = httpx.get(f"{live.base_url}/admin/api/requests/{answer['id']}", timeout=PATIENCE_S).json()
    usage = answer["usage"]
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    return Answered(answer["choices"][0]["message"]["content"], usage["prompt_tokens"], reused, known["images"]["seen"])


def user(*content: str | bytes) -> dict[str, Any]:
    parts = [{"type": "text", "text": one} if isinstance(one, str) else openai_part(one) for one in content]
    return {"role": "user", "content": parts}


@pytest.mark.parametrize(
    ("picture", "question", "answer"),
    [
        (SHAPES, "What color is the square?", "The square is blue."),
        (SHAPES, "What shape is green?", "The green shape is a triangle."),
        (SHAPES, "How many red circles are there?", "There are 2 red circles."),
        (SHAPES, "Is there a star?", "No."),
        (WORD, "What word is written?", "The word is HELLO."),
        (NUMBER, "What number is this?", "The number is 4821."),
        (SIGN, "What does the sign say?", "The sign says STOP."),
    ],
    ids=lambda value: value.rstrip("?.") if isinstance(value, str) else "",
)
def test_it_answers_about_a_picture(live: LiveService, picture: bytes, question: str, answer: str) -> None:
    assert ask(live, [user(picture, question)]).text == answer


def test_images_are_told_apart(live: LiveService) -> None:
    question = "What is written in the second image?"
    assert "HELLO" in ask(live, [user(SHAPES, WORD, question)]).text
    assert "4821" in ask(live, [user(SHAPES, NUMBER, question)]).text
    without = [{"role": "user", "content": "What color is the square?"}]
    response = httpx.post(
        f"{live.base_url}/v1/chat/completions", json={"messages": without, "temperature": 0}, timeout=PATIENCE_S
    )
    assert response.json()["choices"][0]["message"]["content"] == "I see no image."


def test_it_answers_the_request_of_the_banner(live: LiveService) -> None:
    path, body = EXAMPLES[Capability.SEE]
    response = httpx.post(f"{live.base_url}/v1/{path}", json={"model": SEER_ID, **body}, timeout=PATIENCE_S)
    assert response.json()["choices"][0]["message"]["content"] == "The square is blue."


def test_the_example_of_the_docs_prints_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "vision.md").read_text(encoding="utf-8")
    code, _, after = page.partition("```python\n")[2].partition("```\n\n")
    with served() as live:
        exec(code.replace("http://127.0.0.1:8000", live.base_url), {})
    printed = capsys.readouterr().out.splitlines()
    assert [f"    {line}" for line in printed] == after.splitlines()[: len(printed)]


TURNS = (
    ((SHAPES, "How many shapes are there?"), "4"),
    (("What color is the square?",), "blue"),
    ((WORD, "What word is written in the second image?"), "HELLO"),
    (("What color is the text?",), "black"),
    (("What shape is green in the first image?",), "triangle"),
)


def test_a_conversation_over_two_images_takes_two_passes_of_the_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    history, passes, known = list[dict[str, Any]](), list[int](), 0
    with served(tmp_path / "store") as live:
        for content, expected in TURNS:
            history.append(user(*content))
            answered = ask(live, history)
            assert expected in answered.text
            assert answered.reused >= known - 1
            known = answered.num_tokens
            passes.append(answered.seen)
            history.append({"role": "assistant", "content": answered.text})
        assert passes == [1, 0, 1, 0, 0]

        other = ask(live, [user(SHAPES, "What shape is green?")])
        assert (other.text, other.seen) == ("The green shape is a triangle.", 0)
        assert other.reused >= 67
        tenant = ask(live, [user(SHAPES, "What shape is green?")], cache_salt="another tenant")
        assert (tenant.text, tenant.reused, tenant.seen) == (other.text, 0, 1)

    with served(tmp_path / "store") as live:
        again = ask(live, history[:-1])
        assert (again.text, again.seen) == (history[-1]["content"], 0)
        assert again.reused >= known - 16
        saved = httpx.get(f"{live.base_url}/admin/api/overview", timeout=PATIENCE_S).json()["figures"]["saved"]
        assert saved["since_start_s"]["store"] != 0, "priced, though nothing was computed since the start"
        assert saved["unpriced_tokens"] == 0
