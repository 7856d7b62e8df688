"""The database file and its folder: one writer, bounded readers, private files. Uses `format`."""
