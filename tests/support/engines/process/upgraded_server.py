"""`cairn`, whose package is upgraded while it runs: every engine but the first speaks another version's messages.

python -m tests.support.engines.process.upgraded_server serve ...
"""

import sys
from functools import partial

CHILD = "tests.support.engines.process.upgraded_server"


def main() -> None:
    from adapters.engine_process.child import ChildProcess
    from interfaces.cli.main import main
    from interfaces.composition import engine_process

    engine_process.engine_child = partial(ChildProcess, CHILD)
    main()


def be_upgraded(descriptor: int) -> None:
    from adapters.engine_process import host
    from interfaces.cli.server.engine_child import make_engine
    from interfaces.cli.terminal.ending import leave

    host.greeting = lambda: b"cairn-engine of another version"
    leave(host.serve_parent(descriptor, make_engine))


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        be_upgraded(int(sys.argv[1]))
    else:
        main()
