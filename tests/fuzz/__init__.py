"""Fuzzers: hostile files and requests, generated from a seed. `python -m fuzz -h` in tests/ runs them for minutes."""
