"""Finding, pulling and describing model files."""
