"""The session API: its schema, its two encodings, its connections. Runs in the daemon and in clients."""
