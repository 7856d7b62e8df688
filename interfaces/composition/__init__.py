"""The composition root: adapters are chosen here. The only package that knows dependency-injector."""
