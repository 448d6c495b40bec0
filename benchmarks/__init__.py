"""Comparisons with other servers (``python -m benchmarks``); single parts under ``micro``. See METHODOLOGY.md."""
