"""Clients of tool servers by the Model Context Protocol: stdio and streamable HTTP, in both eras of the protocol."""
