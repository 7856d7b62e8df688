"""The engine's life as the text side sees it: replaced when lost, watched when silent. Uses its siblings."""
