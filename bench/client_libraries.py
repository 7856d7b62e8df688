"""Client libraries on a running Cairn: chat, stream, a tool that is really run, structured output, errors, leaving.

    python -m venv DIR && DIR/bin/pip install litellm mcp langchain-openai 'anthropic<1' \\
        'pydantic-ai-slim[openai,anthropic]'
    cairn serve --model cairn-demo          # answers these questions with certainty, and knows nothing else
    DIR/bin/python bench/client_libraries.py http://127.0.0.1:8000

Needs nothing of Cairn but its address. One line a check; the status is that of the worst. The libraries are as they
come: what they send and what they make of the answers is what is looked at, beside the tests of the official SDKs.
"""

import argparse
import asyncio
import json
import os
import sys
import traceback
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

FACT, QUESTION, ANSWER = "My cat is called Miso.", "What is my cat called?", "Miso"
TOOL, ASKED, TOOL_RESULT, TOOL_ANSWER = "get_time", "Tell me the time in Quito.", {"time": "03:31"}, "03:31"
TIME_SPEC = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Get the time in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CAT_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the internet for prices

PLAIN: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
LONG = "My cat is called Miso. Tell me everything you know about it. "


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    model: str

    def is_idle(self) -> bool:
        """Whether nothing waits or runs, as the metrics tell."""
        with urllib.request.urlopen(f"{self.url}/metrics") as response:
            lines = response.read().decode().splitlines()
        gauges = [line for line in lines if line.startswith(("cairn_requests_waiting", "cairn_requests_running"))]
        assert gauges, "the server tells no metrics"
        return all(line.endswith(" 0.0") for line in gauges)


Check = Callable[[Server], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    def register(run: Check) -> Check:
        CHECKS[name] = run
        return run

    return register


def city_time(city: str) -> dict[str, str]:
    """The tool. It knows one city."""
    assert city == "Quito", city
    return TOOL_RESULT


# litellm: a router that re-shapes both requests and answers -----------------------------------------------------------


def litellm_options(server: Server, dialect: str) -> dict[str, Any]:
    import litellm

    litellm.suppress_debug_info = True
    base = {"openai": f"{server.url}/v1", "anthropic": server.url, "ollama_chat": server.url}[dialect]
    return {
        "model": f"{dialect}/{server.model}", "api_base": base, "api_key": "none", "temperature": 0, "max_tokens": 80,
        "num_retries": 0,
    }  # fmt: skip


async def litellm_chat(server: Server, dialect: str) -> None:
    from litellm import acompletion

    messages = [{"role": "user", "content": f"{FACT} {QUESTION}"}]
    answer = await acompletion(messages=messages, **litellm_options(server, dialect))
    assert ANSWER in answer.choices[0].message.content, answer
    assert answer.usage.prompt_tokens > 0, answer.usage
    stream = await acompletion(messages=messages, stream=True, **litellm_options(server, dialect))
    told = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert ANSWER in told, told


async def litellm_tool(server: Server, dialect: str) -> None:
    from litellm import acompletion

    asked = {"tools": [TIME_SPEC], **litellm_options(server, dialect)}
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    first = (await acompletion(messages=messages, **asked)).choices[0].message
    (call,) = first.tool_calls
    result = city_time(**json.loads(call.function.arguments))
    messages += [first.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}]
    last = await acompletion(messages=messages, **asked)
    assert TOOL_ANSWER in last.choices[0].message.content, last


for _dialect in ("openai", "anthropic", "ollama_chat"):
    check(f"litellm {_dialect}: chat and stream")(lambda server, name=_dialect: litellm_chat(server, name))
    check(f"litellm {_dialect}: a tool round trip")(lambda server, name=_dialect: litellm_tool(server, name))


@check("litellm responses: chat")
async def litellm_responses(server: Server) -> None:
    from litellm import aresponses

    options = litellm_options(server, "openai")
    options["max_output_tokens"] = options.pop("max_tokens")
    answer = await aresponses(input=f"{FACT} {QUESTION}", **options)
    text = answer.output[-1].content[0].text
    assert ANSWER in text, answer


@check("litellm: structured output")
async def litellm_form(server: Server) -> None:
    from litellm import acompletion

    form = {"type": "json_schema", "json_schema": {"name": "cat", "schema": CAT_SCHEMA, "strict": True}}
    messages = [{"role": "user", "content": f"{FACT} {QUESTION}"}]
    answer = await acompletion(messages=messages, response_format=form, **litellm_options(server, "openai"))
    found = json.loads(answer.choices[0].message.content)
    assert set(found) == {"name", "kind"}, found


@check("litellm: errors are its own classes")
async def litellm_errors(server: Server) -> None:
    from litellm import acompletion
    from litellm.exceptions import BadRequestError, ContextWindowExceededError, NotFoundError

    options = litellm_options(server, "openai")
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (NotFoundError, {"model": "openai/no-such-model"}),
        (BadRequestError, {"temperature": 99}),
        (ContextWindowExceededError, {"messages": [{"role": "user", "content": "word " * 20_000}]}),
    ]
    for expected, fields in wrong:
        try:
            await acompletion(**{**options, "messages": [{"role": "user", "content": "hi"}], **fields})
        except expected:
            continue
        except Exception as error:
            raise AssertionError(f"{expected.__name__} became {type(error).__name__}: {error}") from error
        raise AssertionError(f"no {expected.__name__}")


@check("litellm: a client that leaves is not computed for")
async def litellm_leaves(server: Server) -> None:
    from litellm import acompletion

    options = litellm_options(server, "openai") | {"max_tokens": 4000}
    extra = {"extra_body": {"ignore_eos": True}}
    stream = await acompletion(messages=[{"role": "user", "content": LONG}], stream=True, **options, **extra)
    async for _ in stream:
        break
    assert not server.is_idle(), "nothing runs that could be left"
    await stream.completion_stream.response.aclose()
    await until_idle(server)


async def until_idle(server: Server) -> None:
    """In a small part of the time that the whole answer would take."""
    for _ in range(100):
        if await asyncio.to_thread(server.is_idle):
            return
        await asyncio.sleep(0.05)
    raise AssertionError("still computing")


# pydantic-ai: an agent's loop of its own, with validated outputs ------------------------------------------------------


def pydantic_model(server: Server, dialect: str) -> Any:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if dialect == "messages":
        client = AsyncAnthropic(base_url=server.url, api_key="none")
        return AnthropicModel(server.model, provider=AnthropicProvider(anthropic_client=client))
    of = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[dialect]
    return of(server.model, provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="none"))


async def pydantic_loop(server: Server, dialect: str) -> None:
    from pydantic_ai import Agent

    agent = Agent(pydantic_model(server, dialect), model_settings=pydantic_settings(dialect))
    asked: list[str] = []

    @agent.tool_plain(name=TOOL, description="Get the time in a city")
    def run(city: str) -> dict[str, str]:
        asked.append(city)
        return city_time(city)

    result = await agent.run(ASKED)
    assert asked == ["Quito"], asked
    assert TOOL_ANSWER in result.output, result
    async with agent.run_stream(ASKED) as streamed:
        told = await streamed.get_output()
    assert asked == ["Quito"] * 2, asked
    assert TOOL_ANSWER in told, told


def pydantic_settings(dialect: str) -> Any:
    extra = PLAIN if dialect == "chat" else {}
    body = {"temperature": 0, **extra}
    return {"max_tokens": 80, "extra_body": body}


for _dialect in ("chat", "responses", "messages"):
    check(f"pydantic-ai {_dialect}: an agent runs a tool")(lambda server, name=_dialect: pydantic_loop(server, name))


@check("pydantic-ai: structured output, as a tool, by the server and by prompt")
async def pydantic_form(server: Server) -> None:
    from typing import Literal

    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput

    class Cat(BaseModel):
        name: Literal["Miso", "Tofu"]

    for output in (Cat, NativeOutput(Cat)):
        agent = Agent(pydantic_model(server, "chat"), output_type=output, model_settings=pydantic_settings("chat"))
        result = await agent.run(f"{FACT} {QUESTION}")
        assert isinstance(result.output, Cat), result


@check("pydantic-ai: errors carry status and body")
async def pydantic_errors(server: Server) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import ModelHTTPError

    for dialect in ("chat", "responses", "messages"):
        nobody = Server(server.url, "no-such-model")
        try:
            await Agent(pydantic_model(nobody, dialect)).run("hi")
        except ModelHTTPError as error:
            told = (error.status_code, "no-such-model" in str(error.body))
        else:
            told = None
        assert told == (404, True), told


# langchain-openai -----------------------------------------------------------------------------------------------------


def langchain(server: Server, **fields: Any) -> Any:
    from langchain_openai import ChatOpenAI

    options: dict[str, Any] = {"temperature": 0, "max_tokens": 80, "max_retries": 0, "extra_body": PLAIN, **fields}
    return ChatOpenAI(model=server.model, base_url=f"{server.url}/v1", api_key="none", **options)


@check("langchain: chat and stream")
async def langchain_chat(server: Server) -> None:
    model = langchain(server)
    question = f"{FACT} {QUESTION}"
    assert ANSWER in (await model.ainvoke(question)).content
    told = "".join([chunk.content async for chunk in model.astream(question)])
    assert ANSWER in told, told


@check("langchain: a tool round trip, also over responses")
async def langchain_tool(server: Server) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    for is_responses in (False, True):
        fields = {"use_responses_api": True, "extra_body": {}} if is_responses else {}
        model = langchain(server, **fields).bind_tools([TIME_SPEC])
        messages: list[Any] = [HumanMessage(ASKED)]
        messages.append(await model.ainvoke(messages))
        (call,) = messages[-1].tool_calls
        messages.append(ToolMessage(json.dumps(city_time(**call["args"])), tool_call_id=call["id"]))
        last = await model.ainvoke(messages)
        assert TOOL_ANSWER in last.text, last


@check("langchain: structured output")
async def langchain_form(server: Server) -> None:
    schema = {"title": "cat", "description": "a cat", **CAT_SCHEMA}
    for method in ("json_schema", "function_calling"):
        found = await langchain(server).with_structured_output(schema, method=method).ainvoke(f"{FACT} {QUESTION}")
        assert set(found) == {"name", "kind"}, found


@check("langchain: completions of a text, several at once")
async def langchain_text(server: Server) -> None:
    from langchain_openai import OpenAI

    model = OpenAI(model=server.model, base_url=f"{server.url}/v1", api_key="none", max_tokens=4, temperature=0)
    result = await model.agenerate(["The path", "The river"])
    assert len(result.generations) == 2, result


@asynccontextmanager
async def reported(name: str, failed: list[str]) -> AsyncIterator[None]:
    try:
        yield
    except Exception as error:
        failed.append(name)
        print(f"FAILED {name}: {error!r}"[:1500])
        traceback.print_exc(limit=-3)
    else:
        print(f"ok     {name}")


async def run_all(server: Server, only: str) -> int:
    failed: list[str] = []
    for name, run in CHECKS.items():
        if only in name:
            async with reported(name, failed):
                await run(server)
    return len(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", default="cairn-demo")
    parser.add_argument("--only", default="", help="checks whose name contains this")
    options = parser.parse_args()
    sys.exit(min(1, asyncio.run(run_all(Server(options.url, options.model), options.only))))


if __name__ == "__main__":
    main()
