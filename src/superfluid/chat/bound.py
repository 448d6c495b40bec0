"""Tells prompts that cannot fit the window before they are rendered and tokenized, which takes seconds for tens of
megabytes. Pure; daemon."""

from collections.abc import Iterable
from typing import Final

from superfluid.chat.interface import Tokenizer
from superfluid.domain.request import Message
from superfluid.errors import ContextLengthExceededError


class PromptBound:
    """A window of ``window_tokens`` holds at most so many characters: those of its longest token, as often."""

    def __init__(self, tokenizer: Tokenizer, window_tokens: int) -> None:
        longest = max((len(tokenizer.piece(token)) for token in range(tokenizer.vocabulary_tokens)), default=1)
        self._window_tokens: Final = window_tokens
        self._most_characters: Final = window_tokens * max(longest, 1)

    def check(self, characters: int) -> None:
        """Raises ContextLengthExceededError."""
        if characters > self._most_characters:
            raise ContextLengthExceededError(
                f"the prompt has {characters} characters, and this server's context window is {self._window_tokens} "
                "tokens including the reply",
                param="messages",
            )

    def check_messages(self, messages: Iterable[Message]) -> None:
        """Counts what every template writes: reasoning and calls may be left out of earlier turns."""
        self.check(sum(len(message.content) for message in messages))
