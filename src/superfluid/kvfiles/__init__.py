"""KV files: lane states on the disk, so that what was computed once stays warm over a restart. In the worker."""
