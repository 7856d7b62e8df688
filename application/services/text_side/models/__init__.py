"""The models that requests name: found, loaded, shared, unloaded. Imports no sibling."""
