"""The prefix cache: keeps, finds, restores and explains the state computed for prompts."""
