"""HTTP API of the server."""
