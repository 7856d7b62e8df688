"""The chat page of a server with the embedded model: right answers, tool calls, and figures that are the API's."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from tests.support.browser.browser import expect
from tests.support.browser.chat_page import ChatPage
from tests.support.mlx.demo_chats import demo_chats

STONES = " ".join(f"The mark on stone {number} is {number * 7}." for number in range(40))

NUMBERS = count(583)
"""Another one whenever it is run: the second question goes on from what the first one left."""


def opened(demo: Any, watch: Callable[..., Any]) -> ChatPage:
    chat = ChatPage(watch(demo.base_url).open(f"{demo.base_url}/chat"))
    chat.page.get_by_text("Sampling, system prompt, tools").click()
    chat.page.get_by_label("Temperature").fill("0")
    chat.page.get_by_label("Max tokens").fill("64")
    return chat


def test_a_second_question_reuses_the_first_and_says_how_much(demo: Any, watch: Callable[..., Any]) -> None:
    chat = opened(demo, watch)
    chat.asked(f"Remember this: my lucky number is {next(NUMBERS)}. {STONES}")
    usage = chat.asked("What is my lucky number?")
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    assert reused > 256
    assert chat.figure("reused") == f"{reused} from the turn before"
    assert chat.figure("prompt") == f"{usage['prompt_tokens']} tokens"
    assert chat.figure("answer") == f"{usage['completion_tokens']} tokens"


def test_a_real_tool_call_is_folded(demo: Any, watch: Callable[..., Any]) -> None:
    [asked] = demo_chats("tools_ep", 1)
    assert asked.tool_call is not None
    name, arguments = asked.tool_call
    chat = opened(demo, watch)
    chat.page.get_by_label("Tools, as a JSON list").fill(json.dumps(asked.tools))
    chat.asked(asked.messages[-1]["content"])
    chat.answer().get_by_text(f"Tool call: {name}").click()
    assert json.loads(chat.answer().locator("details.call pre").inner_text()) == arguments
    expect(chat.answer().locator(".problem:visible")).to_have_count(0)
