"""`clearhead serve`: models over HTTP."""

import importlib.util
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli import options


def serve(
    model: Annotated[
        list[str],
        typer.Option(
            "--model", "-m", metavar="MODEL", help="A folder, a Hub id, or NAME=either; several with several --model."
        ),
    ],
    use: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=USE,USE",
            help="What an encoder–decoder is for: translate, summarize, answer; by default what its checkpoint says.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 for every address of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8080,
    api_key_file: Annotated[
        Path | None, typer.Option(help="API keys, one a line; clients then send Authorization: Bearer KEY.")
    ] = None,
    precision: options.Precision = options.PrecisionOption.auto,
    device: options.Device = "auto",
    queue_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that may wait; one client may use half. Beyond them clients get 429.")
    ] = 262_144,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long what was taken may take to finish after SIGTERM.")
    ] = 20.0,
) -> None:
    """Serve models over HTTP: embeddings as OpenAI's clients ask for them, translations, summaries, answers, labels.

    /docs tells all paths, /health/ready when the models are loaded, /metrics what Prometheus reads.
    """
    # before it listens there is nothing to finish; the first process of a container is not ended by the signal itself
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for name, module in (("fastapi", "fastapi"), ("uvicorn", "uvicorn"), ("prometheus-client", "prometheus_client")):
        if importlib.util.find_spec(module) is None:
            raise ValueError(f'serving needs {name}: pip install "clearhead[serve]"')
        from clearhead.serve.server import keys_in
    from clearhead.serve.server import serve as run
    from clearhead.serve.settings import Settings

    settings = Settings(
        models=model,
        precision=precision.value,
        device=device,
        keys=[] if api_key_file is None else keys_in(api_key_file),
        uses=use or [],
        queue_tokens=queue_tokens,
        drain_seconds=drain_seconds,
    )
    run(settings, host, port)
