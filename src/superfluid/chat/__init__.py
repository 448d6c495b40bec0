"""Text to tokens and back: templates, vocabularies, channels, tool calls. Runs in the daemon."""
