"""The process that owns one model, and its supervisor in the daemon."""
