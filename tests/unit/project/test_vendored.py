"""Files of other projects are what their list says, unchanged, each with its license beside it."""

import hashlib
import re

from interfaces.http.pages.routes import FOLDER

VENDOR = FOLDER / "vendor"
ROW = re.compile(
    r"^\| `(?P<file>[^`]+)` \|.*`(?P<license>[^`]+\.LICENSE)`.*`(?P<sha256>[0-9a-f]{64})` \|$", re.MULTILINE
)


def test_vendored_files_are_as_listed():
    rows = {row["file"]: row for row in ROW.finditer((VENDOR / "VENDORED.md").read_text())}
    notes = {"VENDORED.md", *(row["license"] for row in rows.values())}
    assert {file.name for file in VENDOR.iterdir()} == set(rows) | notes
    for name, row in rows.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == row["sha256"], name
