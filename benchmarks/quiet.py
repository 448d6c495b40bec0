"""Keeps llama.cpp from writing to stderr in this process."""

import ctypes

import llama_cpp.llama_cpp as llama


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _drop(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    del level, text, data


def silence_llama() -> None:
    """Drops every log line from here on."""
    llama.llama_log_set(_drop, ctypes.c_void_p(0))
