"""Where people keep their configuration: `$CAIRN_CONFIG`, or `config.toml` below the XDG configuration folder."""

from collections.abc import Mapping
from pathlib import Path


def config_file(environ: Mapping[str, str]) -> Path:
    """The file that is read; it need not exist unless CAIRN_CONFIG names it."""
    named = environ.get("CAIRN_CONFIG", "")
    if named:
        return Path(named).expanduser()
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the XDG specification has relative paths ignored
        base = Path(environ.get("HOME") or Path.home()) / ".config"
    return base / "cairn" / "config.toml"


__all__ = ("config_file",)
