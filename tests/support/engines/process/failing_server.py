"""`cairn` on the toy backend, whose first engine has a device that fails after a number of passes.

FAILING_DEVICE=num_good:mark python -m tests.support.engines.process.failing_server serve ...

`mark`: a file that does not exist, by which the next engines know that theirs is sound.
"""

import os
import sys
from pathlib import Path
from random import Random

MODULE = "tests.support.engines.process.failing_server"


def main() -> None:
    from interfaces.cli.main import main
    from interfaces.composition import engine_entry

    engine_entry.CHILD = MODULE
    main()


def be_failing(descriptor: int) -> None:
    from adapters.engine_process import host
    from adapters.fake import engine
    from interfaces.cli.server.engine_child import make_engine
    from interfaces.cli.terminal.ending import leave
    from tests.support.engines.failing_device import FailingDevice

    num_good, mark = os.environ["FAILING_DEVICE"].split(":", 1)
    is_first, sound = not Path(mark).exists(), engine.FakeEngine
    Path(mark).touch()
    device = FailingDevice(Random(0), int(num_good) if is_first else None)
    engine.FakeEngine = lambda: device.engine(sound())  # type: ignore[assignment,misc]
    leave(host.serve_parent(descriptor, make_engine))


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        be_failing(int(sys.argv[1]))
    else:
        from tests.support.stores.small_blocks import use_small_blocks

        use_small_blocks()
        main()
