"""The HTTP front end and its dialects."""
