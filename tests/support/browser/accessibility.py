"""What axe-core finds on a page as it stands. It runs in the page and asks nobody."""

from typing import Any

from tests.support.browser.browser import needed

axe = needed("axe_playwright_python.sync_playwright")

_GRAVE = ("serious", "critical")


def grave_findings(page: Any) -> list[str]:
    """What keeps people from using it, each with the elements concerned."""
    violations = axe.Axe().run(page).response["violations"]
    return [
        f"{found['impact']}: {found['id']}: {found['help']}: {[node['target'] for node in found['nodes']]}"
        for found in violations
        if found["impact"] in _GRAVE
    ]
