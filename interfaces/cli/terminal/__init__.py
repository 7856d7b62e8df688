"""A command's terminal: options, progress, logs, failures and Ctrl-C. Imports no other folder here."""
