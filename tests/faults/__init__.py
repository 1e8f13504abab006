"""Failures and SIGKILL at each write, rename and fsync of every command that writes. `python -m faults -h` in tests/."""
