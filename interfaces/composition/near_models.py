"""Hints for a model's name that leads nowhere."""

from application.settings import Settings
from domain.ids import ModelId
from domain.models.near_names import near_names
from domain.printable import printable
from domain.setup.suggestions import SUGGESTIONS
from interfaces.composition.backends import model_repository


def near_models(settings: Settings, name: str) -> str:
    """Models of this machine and suggested ones whose names resemble `name`, as `; near names: A, B`; empty for none,
    and where `name` is here."""
    repository = model_repository(settings)
    if repository.find(ModelId(name)) is not None:
        return ""
    here = [source.id for source in repository.list()]
    near = near_names(name, dict.fromkeys([*here, *(one.name for one in SUGGESTIONS)]))
    return f"; near names: {', '.join(map(printable, near))}" if near else ""
