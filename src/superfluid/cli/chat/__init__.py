"""``superfluid chat``: a conversation in the terminal, on a session of a running server."""
