"""Benchmarks: ratios against peers, measured in one run (see README.md)."""
