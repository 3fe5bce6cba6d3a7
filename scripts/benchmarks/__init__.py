"""Benchmarks: each compares, prints a table, and writes rows of one shape. Run them through `scripts/bench`."""
