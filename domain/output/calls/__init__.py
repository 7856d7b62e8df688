"""The formats in which models write tool calls. Uses `output.reader` and `output.answer`."""
