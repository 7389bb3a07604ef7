"""Benchmarks: they report, and are never tests with a time limit."""
