"""A package, unlike other folders of tests: what serves all of it then ends with it (see `conftest`)."""
