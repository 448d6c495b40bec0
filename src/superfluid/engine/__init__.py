"""The model runtimes behind one interface, and sampling. Runs in the worker."""
