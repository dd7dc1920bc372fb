"""Measurements of speed and accuracy: `python -m benchmarks --help`."""
