"""``superfluid session``: a client of the session API's socket."""
