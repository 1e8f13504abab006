"""Entry point of the command `clearhead` and of `python -m clearhead`."""

import signal


def main() -> None:
    """Run the command. Ctrl-C during its imports ends it without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from clearhead.cli.main import main

    main()


if __name__ == "__main__":
    main()
