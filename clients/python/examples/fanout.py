"""Reads a document once, then streams several questions about it at the same time.

    superfluid serve --web 127.0.0.1:8460        (in another terminal)
    python fanout.py [DOCUMENT] [-q QUESTION]...

Every question goes to a fork of the session that has read the document. A fork shares what was read by reference and
starts warm: the summary says how many tokens of each prompt needed no reading.
"""

import argparse
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from superfluid_client import DEFAULT_URL, Client, Reply, Sampling, Session, SuperfluidError

WIDTH = 76
COLORS = ("\033[36m", "\033[33m", "\033[35m", "\033[32m", "\033[34m", "\033[31m")
PLAIN = "\033[0m"

DOCUMENT = """\
Minutes of the harbour committee, 4 March.

Present: Ada Lund (chair), Tom Reyes, Mira Okafor. Excused: Jens Holm.

1. The lighthouse lamp. The new lamp arrived on Monday, two weeks late. Tom will fit it on 11 March; the old lamp goes
to the museum. Costs were 4,200, which is 300 below the estimate.

2. The north pier. The storm of 20 February broke eleven planks. Mira has asked two carpenters for offers and expects
both by Friday. Until the repair, the last ten metres stay closed.

3. Fishing permits. There were 48 applications for 40 permits. The committee decided to draw lots on 18 March at noon,
in public, in front of the harbour office.

4. Summer festival. Ada proposes 12 July. Jens had objected in a letter that the ferry is fully booked that weekend. The
decision was put off to the next meeting on 1 April.
"""
QUESTIONS = (
    "What did the lamp cost, and who fits it?",
    "What is wrong with the north pier?",
    "How will the fishing permits be given out?",
)


class Screen:
    """Lets several replies be read while all of them are written: each shows up line by line, behind its number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_colors = sys.stdout.isatty()

    def line(self, number: int, text: str) -> None:
        color = COLORS[(number - 1) % len(COLORS)] if self._has_colors else ""
        with self._lock:
            print(f"{color}{number} │{PLAIN if color else ''} {text}", flush=True)


class Lines:
    """Cuts a stream of text into lines of words."""

    def __init__(self, screen: Screen, number: int) -> None:
        self._screen = screen
        self._number = number
        self._text = ""

    def write(self, text: str) -> None:
        self._text += text
        while "\n" in self._text:
            line, self._text = self._text.split("\n", 1)
            self._show(line)
        if len(self._text) > WIDTH:
            *lines, self._text = textwrap.wrap(self._text, WIDTH, drop_whitespace=False) or [""]
            for line in lines:
                self._show(line)

    def end(self) -> None:
        self._show(self._text)
        self._text = ""

    def _show(self, line: str) -> None:
        for part in textwrap.wrap(line, WIDTH):
            self._screen.line(self._number, part)


@dataclass(frozen=True)
class Answer:
    """A reply to a prompt of so many tokens, the document included."""

    reply: Reply
    prompt_tokens: int


def ask(screen: Screen, number: int, fork: Session, question: str, max_tokens: int) -> Answer:
    screen.line(number, f"? {question}")
    fork.user(question)
    prompt_tokens = fork.inspect().summary.tokens
    lines = Lines(screen, number)
    stream = fork.stream(max_tokens)
    for chunk in stream:
        if chunk.kind == "text":
            lines.write(chunk.text)
    lines.end()
    return Answer(stream.reply, prompt_tokens)


def run(client: Client, document: str, questions: list[str], max_tokens: int) -> None:
    screen = Screen()
    session = client.session(
        Sampling(temperature=0.0), system="You answer from the document, in two sentences at most."
    )
    read = session.user(f"Here is a document.\n\n{document}\n\nI will ask about it. Are you ready?")
    print(f"Reading {len(document):,} characters, once ...", flush=True)
    started = time.monotonic()
    # One token of a reply: for that, everything before it has to be read.
    session.generate(1)
    print(f"... took {time.monotonic() - started:.1f} s.\n", flush=True)

    started = time.monotonic()
    # The forks branch off after the document, so that the token above is in none of them.
    forks = [session.fork_after(read, seed=number) for number in range(1, len(questions) + 1)]
    with ThreadPoolExecutor(len(forks)) as pool:
        work = [
            pool.submit(ask, screen, number, fork, question, max_tokens)
            for number, (fork, question) in enumerate(zip(forks, questions, strict=True), 1)
        ]
        answers = [answer.result() for answer in work]
    print(f"\nAll of them took {time.monotonic() - started:.1f} s.")
    print_shares(answers)


def print_shares(answers: list[Answer]) -> None:
    for number, answer in enumerate(answers, 1):
        warm = answer.reply.warm_prefix
        print(f"  {number}: {answer.reply.tokens} tokens; {warm} tokens of the prompt needed no reading")
    shared = sum(answer.reply.warm_prefix for answer in answers)
    total = sum(answer.prompt_tokens for answer in answers)
    print(f"Together: {shared:,} of {total:,} prompt tokens were shared ({shared / max(total, 1):.0%}).")


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask several questions about one document at the same time.")
    parser.add_argument("document", nargs="?", type=Path, help="a text file (default: some minutes of a meeting)")
    parser.add_argument("-q", "--question", action="append", help="may be given several times")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's web address (default: %(default)s)")
    parser.add_argument("--token-file", type=Path, help="where the server's token is, if not in the usual place")
    parser.add_argument("--max-tokens", type=int, default=120, help="length of a reply (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        document = arguments.document.read_text(encoding="utf-8") if arguments.document else DOCUMENT
        client = Client(arguments.url, token_file=arguments.token_file)
        run(client, document, arguments.question or list(QUESTIONS), arguments.max_tokens)
    except (SuperfluidError, OSError) as error:
        print(f"fanout: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
