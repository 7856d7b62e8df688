"""`cairn`, whose engine may be lost as often as it is without pauses that grow: every life counts as a long one.

python -m tests.support.http.servers.killed_server serve ...
"""

from application.services.text_side.supervision import engine_supervisor
from interfaces.cli.main import main
from tests.support.stores.small_blocks import use_small_blocks

engine_supervisor.CALM_S = 0.0
use_small_blocks()
main()
