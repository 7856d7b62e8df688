"""An HTTP answer, whole or streamed, whatever its dialect. Uses `incoming`; each dialect implements `dialect`."""
