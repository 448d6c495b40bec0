"""The session API for browsers and curl: JSON over HTTP, server-sent events and WebSockets. Runs in the daemon."""
