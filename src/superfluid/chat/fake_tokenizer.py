"""The fake engine's vocabulary as the daemon sees it: one token a byte, and ChatML's markers."""

from typing import Final

from superfluid.chat.infill import known_infill_markers
from superfluid.chat.interface import TemplateSource
from superfluid.engine import fake_vocabulary as vocabulary

FAKE_CHAT_TEMPLATE: Final = (
    "{%- if tools %}{{ '<|im_start|>system\\nTools:' }}"
    "{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.reasoning_content %}"
    "{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "{{ '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}"
    "{%- endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


class ByteTokenizer:
    """``ModelVocabulary`` without a model file. ``chat_template`` replaces the built-in one; ``None`` means there is
    none."""

    def __init__(self, chat_template: str | None = FAKE_CHAT_TEMPLATE) -> None:
        self.vocabulary_tokens: int = vocabulary.VOCABULARY_TOKENS
        self.end_of_generation: frozenset[int] = vocabulary.END_OF_GENERATION
        self.special_tokens: dict[str, int] = dict(vocabulary.SPECIAL_IDS)
        self.control_tokens: frozenset[int] = frozenset(
            token for text, token in vocabulary.SPECIAL_IDS.items() if text.startswith("<|")
        )
        self.infill_markers = known_infill_markers(self.special_tokens)
        self.strips_text_before: frozenset[int] = frozenset()
        self.strips_text_after: frozenset[int] = frozenset()
        self.template_source = TemplateSource(default=chat_template, eos_text=vocabulary.TURN_END)
        self._pieces = [vocabulary.piece(token) for token in range(vocabulary.VOCABULARY_TOKENS)]

    def encode_text(self, text: str, *, is_start: bool = False) -> list[int]:
        del is_start  # nothing belongs at the beginning of a stream
        return list(text.encode("utf-8", "replace"))

    def encode_fragment(self, text: str, *, follows_marker: bool) -> list[int]:
        del follows_marker
        return list(text.encode("utf-8", "replace"))

    def encode_template(self, text: str, *, is_start: bool = False) -> list[int]:
        del is_start
        return vocabulary.encode_with_markers(text.encode("utf-8", "replace").decode())

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def close(self) -> None:
        """Nothing to free."""
