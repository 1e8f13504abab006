"""The command `clearhead`, with one thin file per subcommand. Only the commands that need torch import it."""
