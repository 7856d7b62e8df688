"""Support for tests of templates, grammars and what is read from answers."""
