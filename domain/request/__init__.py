"""A request and its answer without a dialect: conversation, tools, sampling, grammar, items. Uses `prefix`."""
