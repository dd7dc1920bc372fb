"""Measurements of speed and accuracy: `make bench`, or `python -m benchmarks --help`."""
