"""superfluid: a daemon that serves GGUF models through llama.cpp. Importing this package does nothing."""
