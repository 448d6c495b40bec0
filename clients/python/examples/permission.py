"""Lets the model call a function, but asks a person first, and leaves both the question and the answer in the log.

superfluid serve --web 127.0.0.1:8460        (in another terminal, with a model that can call tools)
python permission.py [QUESTION] [--yes]
"""

import argparse
import shutil
import sys
from pathlib import Path

from superfluid_client import DEFAULT_URL, Client, Sampling, Session, SuperfluidError, ToolCall

QUESTION = "How much space is free on the disk that holds /?"
MOST_ROUNDS = 8
FREE_SPACE = {
    "type": "function",
    "function": {
        "name": "free_space",
        "description": "Says how many gigabytes are free on the disk that holds a directory.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def free_space(path: str) -> str:
    return f"{shutil.disk_usage(path).free / 1e9:.1f} GB are free"


def is_allowed(session: Session, call: ToolCall, *, says_yes: bool) -> bool:
    """Until the question is answered, be it by another program, nobody can make the session go on."""
    request = session.request_permission(f"May I run {call.name} {call.arguments}?", call)
    print(f"[{request.text}]", end=" ", flush=True)
    is_granted = says_yes or input("y/n ").strip().lower().startswith("y")
    print("yes" if is_granted else "no")
    session.respond_permission(request, granted=is_granted)
    return is_granted


def settle(session: Session, call: ToolCall, *, says_yes: bool) -> None:
    if not is_allowed(session, call, says_yes=says_yes):
        # An answer, since the model sees no other; ``tool_cancelled`` would tell it nothing.
        session.tool_result(call, "The user does not allow this.")
        return
    try:
        session.tool_result(call, free_space(**call.json()))
    except (OSError, TypeError, ValueError) as error:
        session.tool_result(call, f"This failed: {error}")


def run(client: Client, question: str, *, says_yes: bool) -> None:
    session = client.session(Sampling(temperature=0.0), system="Use the function.", tools=[FREE_SPACE])
    session.user(question)
    for _ in range(MOST_ROUNDS):
        reply = session.generate(256)
        print(reply.text.strip())
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            settle(session, call, says_yes=says_yes)
    for entry in session.ledger():
        print(f"[call {entry.call.id}: {entry.call.name}, {entry.state.name.lower()}]")


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a person before a function is run.")
    parser.add_argument("question", nargs="?", default=QUESTION, help="default: %(default)s")
    parser.add_argument("--yes", action="store_true", help="allow everything")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's web address (default: %(default)s)")
    parser.add_argument("--token-file", type=Path, help="where the server's token is, if not in the usual place")
    arguments = parser.parse_args()
    try:
        run(Client(arguments.url, token_file=arguments.token_file), arguments.question, says_yes=arguments.yes)
    except (SuperfluidError, EOFError) as error:
        print(f"permission: {error or 'nobody answered'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
