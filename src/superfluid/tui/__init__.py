"""Terminal monitors. Nothing here is imported by the daemon's process."""
