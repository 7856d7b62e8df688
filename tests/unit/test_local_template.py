"""Which templates are proven to write each message by what stands near it."""

import pytest

from adapters.tokenizers.local_template import names_of_messages
from tests.support.template_pieces import LOCAL, WHOLE

_BODY = "{% for m in messages %}BODY{% endfor %}"


@pytest.mark.parametrize("name", WHOLE)
def test_known_templates(name: str) -> None:
    assert (names_of_messages(WHOLE[name]) is not None) == (name in LOCAL)


@pytest.mark.parametrize(
    "within",
    [
        "{{ m.content }}{{ messages[0].role }}{{ messages[3].role }}",
        "{{ loop.first }}{{ loop.last }}{{ loop.previtem.role }}{{ loop.nextitem.role }}",
        "{{ loop.index0 % 2 == 0 }}{{ loop.index > 1 }}",
        "{{ loop.first or messages[loop.index0 - 1].role == 'tool' }}",
        "{% set ns = namespace(t='') %}{% for p in m.content %}{% set ns.t = ns.t + p %}{{ loop.index }}{% endfor %}",
    ],
)
def test_what_stands_near_may_be_read(within: str) -> None:
    assert names_of_messages(_BODY.replace("BODY", within)) == {"messages"}


@pytest.mark.parametrize(
    "within",
    [
        "{{ messages | length }}",
        "{{ messages[-1].role }}",
        "{{ messages[9].role }}",
        "{{ messages[loop.index0 - 1].role }}",
        "{{ messages[loop.index0 + 2].role }}",
        "{{ loop.index }}",
        "{{ loop.length }}",
        "{{ loop.index0 > 9 }}",
        "{{ loop.index0 % 3 == 0 }}",
        "{{ loop.changed(m.role) }}",
        "{% set own = loop %}{{ own.index }}",
        "{% set ns.last = m.content %}",
        "{% set own = ns %}{% set own.last = m.content %}",
        "{% for o in messages %}{{ o.content }}{% endfor %}",
        "{{ [m] | map(attribute='content') | first }}",
        "{{ m.content | random }}",
        "{{ lipsum() }}",
        "{% break %}",
        "{% include 'other' %}",
        "{% if %}",
    ],
)
def test_what_may_look_further_is_not_local(within: str) -> None:
    assert names_of_messages(_BODY.replace("BODY", within)) is None


@pytest.mark.parametrize(
    "source",
    [
        _BODY + _BODY,
        "{% for x in [1, 2] %}" + _BODY + "{% endfor %}",
        "{% set n = messages | length %}" + _BODY,
        "{% set end = messages[-1] %}" + _BODY,
        "{% set messages = messages[1:] %}" * 3 + _BODY,
        "{% set messages = messages[2:] %}" + _BODY,
        "{% set messages = [messages[0]] + messages %}" + _BODY,
        "{% set shown = tools | map(attribute='name') %}" + _BODY,
        "{% macro shown() %}{% endmacro %}" + _BODY,
        "{% for m in messages recursive %}{% endfor %}",
        "{% for m in messages %}{% else %}none{% endfor %}",
    ],
)
def test_what_goes_through_messages_in_another_way_is_not_local(source: str) -> None:
    assert names_of_messages(source) is None
