"""How the server works: all of its limits in one place."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How the server works.

    Args:
        models: what is loaded: folders, Hub ids, or NAME=one of these.
        uses: NAME=USE,USE: what an encoder–decoder is for, where its checkpoint does not say, or says something else.
        precision, device: as in `TextEncoder`.
        keys: API keys; none for no keys.
        largest_body: bytes of a request's body.
        held_bodies: bytes of all bodies that are held at a time; clients share them (`Shares`).
        header_seconds: how long a connection may take to send the headers of a request that it has begun.
        body_seconds: how long a body may take to come.
        answer_seconds: how long a client may take to take an answer, or what of a stream is there.
        held_answers: bytes of all answers that wait to be taken; beyond it the one that waits longest is given up.
        idle_seconds: how long a connection may wait between two requests; a proxy's time must be shorter.
        connections: how many there may be at a time, shared by address; what comes beyond them is closed at once.
        batch_tokens: tokens that are computed together, of all clients.
        queue_tokens: tokens that may wait or be computed, those that are expected to be generated among them; clients
            share them.
        generated_tokens: most tokens that a request may make the server generate: texts × beams × new tokens.
        drain_seconds: how long what was taken may take to finish after SIGTERM; what then is left is given up.

    >>> from clearhead.serve.settings import Settings
    >>> Settings(models=["all-MiniLM-L6-v2"]).drain_seconds
    20.0
    """

    models: Sequence[str]
    uses: Sequence[str] = ()
    precision: str = "auto"
    device: str = "auto"
    keys: Sequence[str] = ()
    largest_body: int = 4 * 2**20
    held_bodies: int = 64 * 2**20
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    answer_seconds: float = 60.0
    held_answers: int = 256 * 2**20
    idle_seconds: float = 10.0
    connections: int = 1024
    batch_tokens: int = 16_384
    queue_tokens: int = 262_144
    generated_tokens: int = 524_288
    drain_seconds: float = 20.0
