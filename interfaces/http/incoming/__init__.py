"""An HTTP request before its route: its id, its client and that client's limits, its body. Uses `http.errors`."""
