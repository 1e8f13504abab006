"""`clearhead explore`: a model in the browser."""

import contextlib
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def explore(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder, Hub id, or a folder of `export --to web`.")
    ] = "tatoeba-en-de",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 8600,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve a page on which a model runs in the browser: type a text, and see its tokens and attention.

    A folder of `clearhead export --to web` is served as it is. Any other model is exported first, into a temporary
    folder. Ctrl-C ends the command.
    """
    from clearhead.export.web.export import export_web, is_web_export
    from clearhead.export.web.server import page_server

    with tempfile.TemporaryDirectory() as temporary:
        folder, exported = Path(model).expanduser(), is_web_export(model)
        if not exported:
            folder = Path(temporary, "page")
        with page_server(folder, port) as server:  # before the export, for an early error
            if not exported:
                typer.echo(f"exporting {model} …", err=True)
                export_web(model, folder)
            address = f"http://127.0.0.1:{server.server_port}/"
            typer.echo(f"{address} (Ctrl-C ends the command)", err=True)
            if open_browser:
                webbrowser.open(address)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
