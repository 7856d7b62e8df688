"""`cairn`, whose engine may be lost as often as it is without pauses that grow: every life counts as a long one.

python -m tests.support.killed_server serve ...
"""

from domain import restart_pace
from interfaces.cli.main import main
from tests.support.small_blocks import use_small_blocks

restart_pace.CALM_S = 0.0
use_small_blocks()
main()
