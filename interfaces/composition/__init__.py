"""Where adapters meet ports: the only package that knows dependency-injector."""
