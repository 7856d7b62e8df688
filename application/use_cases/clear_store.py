"""Emptying a store that no server has open, or what it holds of one model or one tenant."""

from collections.abc import Callable

from application.ports.block_store import EraseReport, StoreAdministration
from domain.prefix.namespace_choice import NamespaceChoice


def clear_store(store: StoreAdministration, choice: NamespaceChoice) -> EraseReport:
    includes: Callable[..., bool] | None = None if choice.is_everything else choice.includes
    return store.erase(includes)
