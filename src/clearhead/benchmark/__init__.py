"""Measure speed and memory: each candidate in its own process, all of them interleaved."""
