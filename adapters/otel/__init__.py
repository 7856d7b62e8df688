"""OpenTelemetry: traces, metrics, `GET /metrics` and the HTTP span. Start at `setup.build_telemetry`."""
