"""`cairn run`: a conversation in the terminal with a server."""
