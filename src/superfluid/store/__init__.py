"""The durable session log: SQLite, one transaction and one sync for everything that waits. Runs in the daemon."""
