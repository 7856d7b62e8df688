"""Cairn set up on a machine: agents that use it, the service that runs it, and models that fit."""
