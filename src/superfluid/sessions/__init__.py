"""The use cases that every front end calls."""
