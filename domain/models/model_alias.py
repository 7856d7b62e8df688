"""Names of models that clients ask for and nobody serves, and which model answers to them.

Agents ask for models by their vendor's names, some of them whatever they were told: Claude Code's subagents want
`claude-haiku-...`. A model that is served answers to its own name, whatever the aliases say.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

DEFAULT = ""
"""As the target of an alias: the server's default model."""


def parsed_alias(text: str) -> tuple[str, str]:
    """Pattern and model of `PATTERN=MODEL`; of `PATTERN` alone, the default model is the target."""
    pattern, _, model = text.partition("=")
    return pattern.strip(), model.strip()


def answering_model(asked: str, aliases: Mapping[str, str], *, served: Collection[str], default: str) -> str:
    """The model that answers to `asked`. `aliases`: patterns of names (`*`, `?`, `[...]`), each with a model; the
    first that fits counts. A name that nothing fits stays what it is."""
    if asked in served:
        return asked
    target = next((model for pattern, model in aliases.items() if fnmatchcase(asked, pattern)), None)
    if target is None:
        return asked
    return default if target == DEFAULT else target
