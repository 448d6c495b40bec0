"""Follows a session while somebody else works on it, and goes on when the server is started anew.

    superfluid serve --web 127.0.0.1:8460        (in another terminal)
    python follow.py [SESSION] [--from EVENT]

Without an id it is the newest session. What the model writes is shown token by token. Try it with ``fanout.py``, and
kill the server meanwhile.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from superfluid_client import DEFAULT_URL, AsyncClient, AsyncSession, Event, SuperfluidError

ROLES = ("system", "user", "assistant", "tool")


class Transcript:
    """Prints events as a conversation: a line begins with who speaks, and everything else is a line in brackets."""

    def __init__(self) -> None:
        self._is_in_reply = False

    def show(self, event: Event) -> None:
        fields = event.fields
        match event.kind:
            case "Message":
                self._line(f"{ROLES[fields['role']]}: {event.text}")
            case "Generated" if fields["text"]:
                print(event.text if self._is_in_reply else f"assistant: {event.text}", end="", flush=True)
                self._is_in_reply = True
            case "Generated" | "GenerationPrompt" | "GenerationFingerprint":
                pass
            case "ToolUse":
                self._line(f"[call {event.id}: {fields['name']} {fields['arguments']}]")
            case "ToolResult":
                self._line(f"tool: {event.text}")
            case "PermissionRequest":
                self._line(f"[permission {event.id} is asked for: {event.text}]")
            case "EpochBump":
                self._line("[the server was started anew]")
            case _:
                self._line(f"[{event.kind}]")

    def _line(self, text: str) -> None:
        if self._is_in_reply:
            print()
            self._is_in_reply = False
        print(text, flush=True)


async def newest(client: AsyncClient) -> AsyncSession:
    ids = await client.session_ids()
    if not ids:
        raise SystemExit("follow: there is no session yet")
    return await client.get(ids[-1])


async def follow(client: AsyncClient, session_id: int | None, cursor: int) -> None:
    session = await newest(client) if session_id is None else await client.get(session_id)
    print(f"Session {session.id}. Ctrl-C ends.\n", flush=True)
    transcript = Transcript()
    async for event in session.watch(cursor):
        transcript.show(event)


def main() -> int:
    parser = argparse.ArgumentParser(description="Follow a session as it grows.")
    parser.add_argument("session", nargs="?", type=int, help="its id (default: the newest one)")
    parser.add_argument("--from", dest="cursor", type=int, default=0, help="first event to show (default: %(default)s)")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's web address (default: %(default)s)")
    parser.add_argument("--token-file", type=Path, help="where the server's token is, if not in the usual place")
    parser.add_argument("--socket", type=Path, help="the server's unix socket, if not in the usual place")
    arguments = parser.parse_args()
    client = AsyncClient(arguments.url, token_file=arguments.token_file, socket=arguments.socket)
    try:
        asyncio.run(follow(client, arguments.session, arguments.cursor))
    except (SuperfluidError, ValueError) as error:
        print(f"follow: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
