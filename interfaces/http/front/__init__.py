"""The socket and the checks before routing: server, connections, hosts, origins. Uses `incoming`, `answering`."""
