"""One file that a browser may have: its bytes, its type and a tag that changes with them.

What is served is listed once, when the server starts, and stays in memory: no path of a request ever becomes a path of
the file system. Files of types that browsers do not need (licenses, notes) are not served.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "files"

# Litestar adds the charset of texts.
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """`etag`: as in the header, with its quotes."""

    body: bytes
    media_type: str
    etag: str

    def is_known_as(self, if_none_match: str) -> bool:
        """Whether a client that sends this `If-None-Match` has it already (RFC 9110, 13.1.2: compared weakly)."""
        tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
        return bool(tags & {self.etag, "*"})


def assets(folder: Path = FOLDER) -> Mapping[str, Asset]:
    """By path of the address: `NAME.html` of the folder itself is the page `/NAME`, all else is below `/pages/`."""
    found: dict[str, Asset] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix not in _TYPES or not file.is_file():
            continue
        inner = file.relative_to(folder)
        is_page = file.suffix == ".html" and len(inner.parts) == 1
        found[f"/{file.stem}" if is_page else f"/pages/{inner.as_posix()}"] = _asset(file)
    return found


def _asset(file: Path) -> Asset:
    body = file.read_bytes()
    return Asset(body, _TYPES[file.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')


__all__ = ("FOLDER", "Asset", "assets")
