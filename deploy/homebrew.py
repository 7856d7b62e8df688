"""The Homebrew formula of a release, written to standard output.

    python deploy/homebrew.py --url SDIST --sha256 HEX --homepage URL [--report FILE] > Formula/cairn-mlx.rb

Run it in a checkout after `make install`. The packages are those that Cairn needs on Apple silicon, by the metadata of
the installed ones, each at the version of constraints.txt. `--report`: pip's report of those packages for the target,
whose hashes the formula then demands; docs/releasing.md has the command.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHON = "3.13"
TARGET = {
    "sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix",
    "python_version": PYTHON, "python_full_version": f"{PYTHON}.0", "implementation_name": "cpython",
    "platform_python_implementation": "CPython", "extra": "",
}  # fmt: skip

FORMULA = """\
# Written by deploy/homebrew.py from pyproject.toml and constraints.txt: change those.
class CairnMlx < Formula
  desc "{desc}"
  homepage "{homepage}"
  url "{url}"
  sha256 "{sha256}"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on :macos
  depends_on "python@{python}"

  PINS = <<~EOS.freeze
{pins}
  EOS

  def python
    Formula["python@{python}"].opt_bin/"python{python}"
  end

  def install
    (libexec/"requirements.txt").write PINS
    system python, "-m", "venv", buildpath/"build"
    pip = buildpath/"build/bin/pip"
    system pip, "download", "--no-deps", "--only-binary=:all:", "--dest", libexec/"wheels",
           "--requirement", libexec/"requirements.txt"
    system pip, "wheel", "--no-deps", "--wheel-dir", libexec/"wheels", buildpath
    (bin/"cairn").write <<~SH
      #!/bin/sh
      exec "#{{opt_libexec}}/venv/bin/cairn" "$@"
    SH
    chmod 0755, bin/"cairn"
  end

  # Not in install: Homebrew rewrites load commands of libraries after it, for which those of Rust wheels have no room.
  def post_install
    rm_r libexec/"venv" if (libexec/"venv").exist?
    system python, "-m", "venv", libexec/"venv"
    system libexec/"venv/bin/pip", "install", "--no-index", "--no-deps", *Dir[libexec/"wheels/*.whl"]
  end

  service do
    run [opt_bin/"cairn", "serve"]
    keep_alive successful_exit: false
    process_type :interactive
    log_path var/"log/cairn.log"
    error_log_path var/"log/cairn.log"
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/cairn version")
  end
end
"""


def constraints() -> Mapping[str, str]:
    """Versions by canonical name."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^;\s]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def closure() -> Mapping[str, str]:
    """Cairn's packages on the target with their versions, in order of their names."""
    pins, found = constraints(), set[str]()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [(Requirement(line), frozenset[str]()) for line in project["dependencies"]]
    while waiting:
        requirement, extras = waiting.pop()
        if requirement.marker and not any(
            requirement.marker.evaluate({**TARGET, "extra": extra}) for extra in extras or {""}
        ):
            continue
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found.add(name)
        with suppress(PackageNotFoundError):  # of another platform, and without requirements of its own
            waiting += [(Requirement(line), frozenset(requirement.extras)) for line in requires(name) or ()]
    if missing := sorted(found - set(pins)):
        raise SystemExit(f"constraints.txt has no version of {', '.join(missing)}")
    return {name: pins[name] for name in sorted(found)}


def render(url: str, sha256: str, homepage: str, hashes: Mapping[str, str] | None = None) -> str:
    """The formula. `hashes`: of the packages' wheels, by canonical name; None for none."""
    for text in (url, sha256, homepage):
        if not re.fullmatch(r"[^\s\"\\#]+", text):
            raise SystemExit(f"{text!r} must be without spaces, quotes, backslashes and #")
    lines = [
        f"    {name}=={version}" + (f" --hash=sha256:{hashes[name]}" if hashes is not None else "")
        for name, version in closure().items()
    ]
    desc = "LLM inference server on MLX that never computes a prompt twice"
    pins = "\n".join(lines)
    return FORMULA.format(desc=desc, homepage=homepage, url=url, sha256=sha256, python=PYTHON, pins=pins)


def hashes_of(report: Path) -> Mapping[str, str]:
    """The hashes in a report of `pip install --dry-run --report`."""
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        canonicalize_name(one["metadata"]["name"]): one["download_info"]["archive_info"]["hashes"]["sha256"]
        for one in found
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--sha256")
    parser.add_argument("--homepage")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--pins", action="store_true", help="print the packages instead, for pip")
    options = parser.parse_args()
    if options.pins:
        print("\n".join(f"{name}=={version}" for name, version in closure().items()))
        return
    if not (options.url and options.sha256 and options.homepage):
        parser.error("--url, --sha256 and --homepage are needed")
    hashes = None if options.report is None else hashes_of(options.report)
    print(render(options.url, options.sha256, options.homepage, hashes), end="")


if __name__ == "__main__":
    main()
