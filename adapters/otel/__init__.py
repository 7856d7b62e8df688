"""The OpenTelemetry adapter: traces, metrics, logs and the HTTP span. `setup.build_telemetry` is the entry."""
