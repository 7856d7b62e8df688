"""The `cairn` command, also as `python -m cairn`."""

import cairn  # first: it puts Cairn's packages on the path
from interfaces.cli.main import main

__all__ = ["cairn", "main"]

if __name__ == "__main__":
    main()
