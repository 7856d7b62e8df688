"""`python -m interfaces.cli` is `cairn`, also in a checkout that was never installed."""

from interfaces.cli.main import main

main()
