"""What a model writes becomes text, structure and links on the chat page, and never anything that acts."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.browser.accessibility import grave_findings
from tests.support.browser.browser import PHONE, WIDE, expect, hold_timers, is_as_wide_as_its_window
from tests.support.browser.chat_page import ChatPage
from tests.support.browser.scripted_chat import ScriptedChat
from tests.support.http.servers.fake_service import FakeService, fake_service

MARKDOWN = """# Paths

A *cairn*, a **mark** and `code` &amp; ~~no~~ [sign](https://example.org/sign).

- [x] done
- open
  1. deeper

| stone | weight |
|:------|-------:|
| small | 1 |

> said

```python
print("<b>")
```

See [below].

[below]: https://example.org/below
"""

HOSTILE = """<script>window.hurt = 1</script>

<img src=x onerror="window.hurt = 2"><iframe src="https://evil.example/"></iframe>
<svg onload="window.hurt = 3"></svg><style>body { display: none }</style>
<form action="https://evil.example/"><input name=key></form><a href="javascript:window.hurt=4">html</a>

[script](javascript:window.hurt=5) [coded](&#106;avascript:window.hurt=6) [data](data:text/html,<script>hurt</script>)
[spaced](java\tscript:window.hurt=7) [own](/admin) [file](file:///etc/passwd) <javascript:window.hurt=8>

![pixel](https://evil.example/pixel.png) ![x](javascript:window.hurt=9 "t\\" onerror=\\"window.hurt=10")

```"><script>window.hurt = 11</script>
</code></pre><script>window.hurt = 12</script>
```

| <img src=x onerror=window.hurt=13> |
|---|
| <details ontoggle=window.hurt=14 open> |

<think>late <img src=x onerror=window.hurt=15></think> The end.
"""


OWN = ".markdown *:not(.code-bar *)"
"""What stands for the model's text: the bar of a block of code is the page's."""


RICH = r"""```python
def mark(path):
    return "stone"  # one
```

- a list

  ```js
  const stones = 5;
  ```

The sum $a_1 + \frac{1}{2}$ costs $5 or $6, and \(x^2\).

$$
\sqrt{2}
$$

$\nosuchcommand{1}$
"""

HOSTILE_FORMULAS = r"""$\href{javascript:window.hurt=1}{a}$ $\includegraphics{https://evil.example/x.png}$ $\url{https://evil.example}$
$\htmlStyle{position:fixed}{b}$ $\htmlId{main}{c}$ $\boxed{d}$ $\text{<img src=x onerror=window.hurt=2>}$
$\def\a{\a\a}\a$ $\rule{99999em}{99999em}$

```html
<img src=x onerror="window.hurt = 3"><script>window.hurt = 4</script>
```
"""


@pytest.fixture(scope="module")
def script() -> ScriptedChat:
    return ScriptedChat(
        {
            "Mark it": MARKDOWN,
            "Hurt me": HOSTILE,
            "Reason": f"<think>{HOSTILE}</think>Done.",
            "Draw": RICH,
            "Formulas": HOSTILE_FORMULAS,
        }
    )


@pytest.fixture(scope="module")
def server(browser: Any, script: ScriptedChat) -> Iterator[FakeService]:
    with fake_service(script.options) as running:
        yield running


@pytest.fixture
def chat(server: FakeService, watch: Callable[..., Any]) -> ChatPage:
    return ChatPage(watch(server.base_url).open(f"{server.base_url}/chat"))


def test_markdown_is_shown_as_what_it_means_and_code_is_copied(chat: ChatPage) -> None:
    chat.ask("Mark it")
    chat.wait_until_answered()
    answer = chat.answer()
    expect(answer.get_by_role("heading", name="Paths")).to_be_visible()
    expect(answer.locator("em")).to_have_text("cairn")
    expect(answer.locator("p").first).to_have_text("A cairn, a mark and code & no sign.")
    expect(answer.locator("li li")).to_have_text("deeper")
    expect(answer.locator("td").last).to_have_text("1")
    expect(answer.locator("blockquote")).to_have_text("said")
    expect(answer.locator("pre")).to_have_text('print("<b>")')
    for name, address in (("sign", "https://example.org/sign"), ("below", "https://example.org/below")):
        link = answer.get_by_role("link", name=name)
        expect(link).to_have_attribute("href", address)
        expect(link).to_have_attribute("rel", "noopener noreferrer")
        expect(link).to_have_attribute("target", "_blank")

    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copy = chat.answer().locator(".code").get_by_role("button")
    hold_timers(chat.page)
    copy.click()
    expect(copy).to_have_accessible_name("Copied")
    assert chat.page.evaluate("navigator.clipboard.readText()") == 'print("<b>")'


@pytest.mark.parametrize("question", ["Hurt me", "Reason"])
def test_nothing_that_a_model_writes_acts(question: str, chat: ChatPage) -> None:
    """Nor asks anybody else: the watched browser fails the test for that."""
    chat.ask(question)
    chat.wait_until_answered()
    for summary in chat.answer().locator("summary:visible").all():
        summary.click()
    assert chat.page.evaluate("window.hurt") is None
    tags = set(chat.answer().locator(OWN).evaluate_all("all => all.map(one => one.localName)"))
    assert not tags & {"script", "img", "iframe", "svg", "style", "form", "input", "object", "video", "base", "link"}
    named = chat.answer().locator(OWN).evaluate_all("all => all.flatMap(one => one.getAttributeNames())")
    assert set(named) <= {"class", "href", "target", "rel", "tabindex", "type"}
    links = chat.answer().locator(".markdown a").evaluate_all("all => all.map(one => one.href)")
    assert links == ["https://evil.example/pixel.png"]
    expect(chat.answer()).to_contain_text("<script>window.hurt = 1</script>")


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_code_has_colours_and_formulas_are_drawn_by_what_is_loaded_for_them(
    size: tuple[int, int], scheme: str, server: FakeService, watch: Callable[..., Any]
) -> None:
    chat = ChatPage(watch(server.base_url, size=size, scheme=scheme).open(f"{server.base_url}/chat"))
    libraries = "performance.getEntriesByType('resource').map(one => one.name.split('/').pop())"
    chat.ask("What?")
    chat.wait_until_answered()
    assert not {"highlight.min.js", "katex.min.js"} & set(chat.page.evaluate(libraries))
    chat.ask("Draw")
    chat.wait_until_answered()
    answer = chat.answer()
    expect(answer.locator("pre .hl-keyword")).to_have_text(["def", "return", "const"])
    expect(answer.locator("pre").first).to_have_text('def mark(path):\n    return "stone"  # one')
    plain = chat.page.evaluate("getComputedStyle(document.body).color")
    assert answer.locator("pre .hl-string").evaluate("one => getComputedStyle(one).color") != plain
    expect(answer.locator("math")).to_have_count(3)
    expect(answer.locator("math mfrac")).to_have_text("12")
    expect(answer.locator(".display math msqrt")).to_have_text("2")
    expect(answer).to_contain_text("costs $5 or $6, and")
    expect(answer).to_contain_text(r"$\nosuchcommand{1}$")
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)


def test_a_language_whose_name_comes_in_pieces_has_its_colours(script: ScriptedChat, chat: ChatPage) -> None:
    script.hold_at(len("```py"))
    chat.ask("Draw")
    expect(chat.answer().locator(".code-bar").first).to_have_text("py")
    script.go_on()
    chat.wait_until_answered()
    expect(chat.answer().locator(".code-bar").first).to_have_text("python")
    expect(chat.answer().locator("pre .hl-keyword")).to_have_text(["def", "return", "const"])


def test_no_formula_and_no_code_acts(chat: ChatPage) -> None:
    """The watched browser fails the test for what it refuses by the page's policy, and for whom it asks."""
    chat.ask("Formulas")
    chat.wait_until_answered()
    expect(chat.answer().locator("math").first).to_be_visible()
    expect(chat.answer().locator("pre .hl-keyword").first).to_be_visible()
    named = chat.answer().locator(OWN).evaluate_all("all => all.flatMap(one => one.getAttributeNames())")
    assert not set(named) & {"style", "id", "src", "href", "xlink:href", "onerror"}
    tags = set(chat.answer().locator(OWN).evaluate_all("all => all.map(one => one.localName)"))
    assert not tags & {"script", "img", "iframe", "svg", "style", "form", "input", "a", "mglyph", "maction"}
    assert chat.page.evaluate("window.hurt") is None
    assert is_as_wide_as_its_window(chat.page)
