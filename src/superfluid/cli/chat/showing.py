"""Shows again what is there: a conversation's messages, a session's family."""

from collections.abc import Mapping, Sequence

from superfluid.cli.chat.conversation import Answered, Called, Conversation, Exchange, Part, Said, Shown
from superfluid.cli.chat.screen import Screen
from superfluid.cli.session.catalog import Row
from superfluid.cli.session.forest import ASCII_GLYPHS, Forest, Glyphs, drawn_lines
from superfluid.cli.session.table import title_text


def print_history(screen: Screen, conversation: Conversation, count: int, files: Mapping[str, str]) -> None:
    """The last ``count`` messages with their replies, and a word on what came before them.

    ``files`` says of images by their blobs which files they were.
    """
    if conversation.system:
        screen.say(f"system: {conversation.system}")
    hidden = max(len(conversation.exchanges) - count, 0)
    if hidden:
        screen.say(f"{hidden} earlier message{'s' * (hidden != 1)}: /history shows all.")
    else:
        _print_parts(screen, conversation.preface, files)
    print_exchanges(screen, conversation.exchanges[hidden:], files)


def print_exchanges(screen: Screen, exchanges: Sequence[Exchange], files: Mapping[str, str]) -> None:
    for exchange in exchanges:
        screen.blank()
        screen.message(exchange.number, exchange.text)
        screen.blank()
        _print_parts(screen, exchange.parts, files)


def _print_parts(screen: Screen, parts: Sequence[Part], files: Mapping[str, str]) -> None:
    if not parts:
        return
    view = screen.view()
    for part in parts:
        match part:
            case Said(channel, text):
                view.write(channel, text)
            case Called(call_id, name, arguments):
                view.call(call_id, name, arguments)
            case Answered(call_id, text):
                view.end()
                screen.say(f"answer {call_id}: {text}")
            case Shown(text, blob):
                view.end()
                file = f" ({files[blob]})" if blob in files else ""
                screen.say(f"[{text}{file}]")
    view.end()


def print_family(screen: Screen, rows: Sequence[Row], current: int) -> None:
    """The tree that session ``current`` is in, with a mark at it."""
    forest = Forest(rows)
    glyphs = Glyphs() if screen.is_unicode else ASCII_GLYPHS
    for line in drawn_lines(forest, forest.root_of(current), glyphs, kept=(current,)):
        row = line.row
        if row is None:
            screen.say(f"{line.prefix} {line.text}")
            continue
        here = "  <- here" if row.id == current else ""
        archived = "  archived" if row.is_archived else ""
        title = f"  {title_text(row)}" if row.title else ""
        text = f"{line.prefix}{row.id}{title}  {row.tokens:,} tokens{archived}{here}"
        screen.say(text, "bold cyan" if here else "")
