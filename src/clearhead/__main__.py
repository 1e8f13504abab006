"""Entry point of `python -m clearhead`, which runs the command `clearhead`."""

from clearhead.cli.main import main

if __name__ == "__main__":
    main()
