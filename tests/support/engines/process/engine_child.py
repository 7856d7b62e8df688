"""The entry of a child process that hosts the toy engine of the engine port's contract."""

import os
import sys

from adapters.engine_process.host import serve_parent
from tests.support.engines.engine_client import hosted_toy

if __name__ == "__main__":
    os._exit(serve_parent(int(sys.argv[1]), hosted_toy))
