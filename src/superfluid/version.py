"""The program's version, read by the build and shown by the command line, the API and the metrics."""

__version__ = "0.1.0"
