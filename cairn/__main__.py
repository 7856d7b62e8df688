"""The `cairn` command, also as `python -m cairn`."""

import cairn as _on_the_path  # noqa: F401  (puts Cairn's packages on the path)
from interfaces.cli.main import main

if __name__ == "__main__":
    main()
