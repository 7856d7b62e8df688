"""How long tests wait for what must happen: it bounds a hang and measures nothing, so it is long.

Whatever takes this long is broken on any machine. pytest's own limit for a test is longer, so that the wait that was
in vain is the one that is named.
"""

PATIENCE_S = 120.0
