"""A tool call's arguments as they were generated, through a template that writes them as JSON.

Templates get an object that stands for the text, and write it with whatever filter and spacing they use; in what they
rendered, the text takes its place. A template that reads an object's members instead leaves the stand-in behind.
"""

import json
import re
import secrets

_NAME = f"cairn-{secrets.token_hex(16)}"
"""Nobody can write it into a prompt, because nobody knows it."""

_STAND_IN = re.compile(rf'\{{\s*"{_NAME}"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*\}}')


def stand_in(text: str) -> dict[str, str]:
    return {_NAME: text}


def has_stand_in(rendered: str) -> bool:
    return _NAME in rendered


def without_stand_ins(rendered: str) -> str:
    return _STAND_IN.sub(lambda found: str(json.loads(found[1])), rendered)


__all__ = ("has_stand_in", "stand_in", "without_stand_ins")
