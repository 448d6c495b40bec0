"""Opens the model that drafts for another one, which must have the same vocabulary. Runs in the worker."""

from dataclasses import replace
from pathlib import Path

from superfluid.engine.llama import LlamaEngine, LlamaOptions
from superfluid.errors import ModelFileError, ModelLoadError, UsageError


def open_draft(target: LlamaEngine, target_path: Path, path: Path, options: LlamaOptions) -> LlamaEngine:
    """``options`` are the target's. The draft has as many lanes and as long a window, and sees no images. Blocks.

    Raises UsageError if its vocabulary is another one, ModelFileError and ModelLoadError with its name.
    """
    options = replace(
        options,
        window_tokens=target.facts.window_tokens,
        projector=None,
        evaluation_callback=None,
        is_window_fitted=False,
        kv_bits=0,
    )
    try:
        draft = LlamaEngine(path, options)
    except (ModelFileError, ModelLoadError) as error:
        raise type(error)(f"the draft model cannot be used: {error.message}") from error
    finally:
        target.listen_again()
    sizes = (draft.facts.vocabulary_tokens, target.facts.vocabulary_tokens)
    if sizes[0] != sizes[1] or draft.vocabulary_digest != target.vocabulary_digest:
        draft.close()
        kind = f"{sizes[0]} and {sizes[1]} tokens" if sizes[0] != sizes[1] else "as many, but other tokens"
        raise UsageError(
            f"the draft model {path} has another vocabulary than the model {target_path} ({kind}): its guesses would "
            "mean something else"
        )
    return draft
