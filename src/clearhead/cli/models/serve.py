"""`clearhead serve`: serve models over HTTP."""

import importlib.util
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli import options

Task = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TASK,TASK",
        help="Tasks of an encoder–decoder: translate, summarize, answer. Default: those in its config.json.",
    ),
]
Adapter = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=ADAPTER",
        help="Task whose adapter is merged into the weights of a model, such as retrieval.query.",
    ),
]


def serve(
    model: Annotated[
        list[str],
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="A model folder, an index, a Hub id, or NAME=FOLDER or NAME=ID. Repeat the option for several.",
        ),
    ],
    task: Task = None,
    adapter: Adapter = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for every address of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port.")] = 8080,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="File with one API key per line. Clients must send the header Authorization: Bearer KEY."),
    ] = None,
    precision: options.Precision = options.PrecisionOption.auto,
    strict: options.StrictPrecision = False,
    device: options.Device = "auto",
    queue_tokens: Annotated[
        int,
        typer.Option(min=1, help="Maximum tokens in the queue, half of them for one client. More get HTTP 429."),
    ] = 262_144,
    drain_seconds: Annotated[
        float, typer.Option(min=0, max=86_400, help="Time that accepted requests get to finish after SIGTERM.")
    ] = 20.0,
) -> None:
    """Serve models over HTTP: embeddings (OpenAI-compatible), translation, summaries, answers, classification.

    /docs describes all routes, /health/ready reports when the models are loaded, /metrics is for Prometheus.
    """
    # before the server listens there is nothing to drain; PID 1 of a container ignores SIGTERM without a handler
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if not host:
        raise ValueError("--host is empty; give an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all")
    for name, module in (("fastapi", "fastapi"), ("uvicorn", "uvicorn"), ("prometheus-client", "prometheus_client")):
        if importlib.util.find_spec(module) is None:
            raise ValueError(f'serving needs {name}: pip install "clearhead[serve]"')
    from clearhead.serve.server import read_api_keys
    from clearhead.serve.server import serve as run_server
    from clearhead.serve.settings import Settings

    settings = Settings(
        models=model,
        precision=precision.value,
        strict=strict,
        device=device,
        api_keys=[] if api_key_file is None else read_api_keys(api_key_file),
        tasks=task or [],
        adapters=adapter or [],
        queue_tokens=queue_tokens,
        drain_seconds=drain_seconds,
    )
    run_server(settings, host, port)
