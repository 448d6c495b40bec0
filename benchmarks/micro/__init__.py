"""Micro-benchmarks of single parts, each runnable as ``python -m benchmarks.micro.<name>``."""
