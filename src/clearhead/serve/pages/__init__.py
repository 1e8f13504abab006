"""Web pages of the server."""
