"""A command's terminal: options, progress, logs, failures, Ctrl-C. Imports no other folder here."""
