"""The chat page's modules that need no browser, tested under node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

TESTS = Path(__file__).parent / "chat"


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_modules_of_the_chat_page():
    files = sorted(TESTS.glob("*.test.mjs"))
    imports = "".join(f"await import({json.dumps(file.as_uri())});" for file in files)
    command = ["node", "--experimental-detect-module", "--no-warnings", "--input-type=module", "-e", imports]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert files
    assert ended.returncode == 0, ended.stdout + ended.stderr
