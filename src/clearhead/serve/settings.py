"""Settings of the server, with all of its limits."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Settings of the server.

    Args:
        models: models to load: folders, Hub ids, or NAME=FOLDER or NAME=ID.
        tasks: NAME=TASK,TASK for each encoder–decoder whose tasks differ from those in its checkpoint.
        adapters: NAME=ADAPTER for each text encoder with an adapter.
        precision, device: as in `TextEncoder`.
        strict: raise an error if a model cannot run in the precision.
        api_keys: accepted API keys; empty to accept every request.
        max_body_bytes: maximum size of a request body.
        max_buffered_bytes: maximum total size of the bodies in memory. Clients share it (`FairLimit`).
        header_seconds: time limit for a client to send the headers of a request.
        body_seconds: time limit for a client to send a body.
        response_seconds: time limit for a client to read a response, or the available part of a stream.
        max_unread_bytes: maximum total size of responses that clients have not read. Beyond it the connection that
            waits longest is closed.
        idle_seconds: time limit between two requests of a connection. A proxy in front needs a shorter limit.
        max_connections: maximum number of connections. Addresses share it; further connections are closed at once.
        batch_tokens: maximum number of tokens in a batch, over all clients.
        queue_tokens: maximum number of tokens that wait or are computed, with those that are expected to be generated.
            Clients share it.
        max_generated_tokens: maximum number of tokens that a request can generate: texts x beams x new tokens.
        drain_seconds: time limit after SIGTERM for accepted requests. The rest is cancelled.

    >>> from clearhead.serve.settings import Settings
    >>> Settings(models=["all-MiniLM-L6-v2"]).drain_seconds
    20.0
    """

    models: Sequence[str]
    tasks: Sequence[str] = ()
    adapters: Sequence[str] = ()
    precision: str = "auto"
    strict: bool = False
    device: str = "auto"
    api_keys: Sequence[str] = ()
    max_body_bytes: int = 4 * 2**20
    max_buffered_bytes: int = 64 * 2**20
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    response_seconds: float = 60.0
    max_unread_bytes: int = 256 * 2**20
    idle_seconds: float = 10.0
    max_connections: int = 1024
    batch_tokens: int = 16_384
    queue_tokens: int = 262_144
    max_generated_tokens: int = 524_288
    drain_seconds: float = 20.0
