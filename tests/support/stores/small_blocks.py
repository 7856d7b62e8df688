"""`cairn` with blocks and prefill chunks of other sizes, which no setting changes: short prompts fill several then. And
with another deadline of the shared store, which a busy machine may miss, and with fewer bytes of live states.

python -m tests.support.stores.small_blocks --block-size 16 --prefill-grid 32 --shared-deadline-s 60 serve ...
"""

import sys
from collections.abc import Mapping
from dataclasses import replace

from adapters.config import loader
from domain.byte_size import ByteSize


def use_small_blocks() -> None:
    """Takes the flags out of this process's arguments, wherever they stand; each may be absent."""
    sizes = {name: _taken(flag) for name, flag in (("block_size", "--block-size"), ("prefill_grid", "--prefill-grid"))}
    given = {name: size for name, size in sizes.items() if size is not None}
    deadline_s = _taken("--shared-deadline-s")
    live_bytes = _taken("--live-bytes")
    load = loader.load_settings

    def small(environ: Mapping[str, str], flags: Mapping[str, loader.Flag] | None = None) -> loader.LoadedSettings:
        loaded = load(environ, flags)
        engine = replace(loaded.settings.engine, **given)
        store = loaded.settings.store
        store = store if deadline_s is None else replace(store, shared_deadline_s=float(deadline_s))
        cache = loaded.settings.cache
        cache = cache if live_bytes is None else replace(cache, live_states=ByteSize(num_bytes=live_bytes))
        return replace(loaded, settings=replace(loaded.settings, engine=engine, store=store, cache=cache))

    loader.load_settings = small


def _taken(flag: str) -> int | None:
    if flag not in sys.argv:
        return None
    at = sys.argv.index(flag)
    _, value = sys.argv[at : at + 2]
    del sys.argv[at : at + 2]
    return int(value)


if __name__ == "__main__":
    from interfaces.cli.main import main

    use_small_blocks()
    main()
