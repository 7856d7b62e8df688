"""Events, spans, metrics and logs, recorded or received."""
