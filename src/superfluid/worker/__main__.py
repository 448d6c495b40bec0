"""``python -m superfluid.worker <fd>``: the process that owns one model. Spawned by the supervisor with its socket."""

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
from typing import Final

import msgspec

from superfluid.clock import SystemClock
from superfluid.engine.machine import usable_cpus
from superfluid.errors import SuperfluidError
from superfluid.worker import logs
from superfluid.worker.connection import DaemonConnection
from superfluid.worker.core_use import CoreUse, WaitedTime
from superfluid.worker.engine_choice import load_engine
from superfluid.worker.inbox import Inbox
from superfluid.worker.kv_files import open_kv_files
from superfluid.worker.loop import TickLoop
from superfluid.worker.protocol import Load, LoadFailed, Ready
from superfluid.worker.speculation import open_draft_model, settled_facts, settled_rules, warn_of_inexactness
from superfluid.worker.system_pressure import SystemPressure

EXIT_LOAD_FAILED: Final = 3
EXIT_BAD_CALL: Final = 2
_TRIAL_NICENESS: Final = 10

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serves until ``Stop`` (0), or until the model does not load (3). Ends at once when the daemon is gone."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("superfluid.worker is started by the daemon, with the number of its socket", file=sys.stderr)
        return EXIT_BAD_CALL
    _follow_the_daemon()
    sock = socket.socket(fileno=int(arguments[0]))
    sock.set_inheritable(False)
    inbox = Inbox()
    connection = DaemonConnection(sock, inbox, _leave)
    connection.start_reading()
    return serve(connection, inbox)


def serve(connection: DaemonConnection, inbox: Inbox) -> int:
    """From the first message to the exit code."""
    load = inbox.get()
    if not isinstance(load, Load):
        print(f"the first message must be Load, not {type(load).__name__}", file=sys.stderr)
        return EXIT_BAD_CALL
    logs.install(connection.send, load.log_filter)
    if load.settings.is_trial:
        os.nice(_TRIAL_NICENESS)
    try:
        engine = load_engine(load.settings)
        settings = msgspec.structs.replace(
            load.settings, speculation=settled_rules(load.settings.speculation, engine.facts)
        )
        warn_of_inexactness(settings)
        draft_model = open_draft_model(settings, engine)
    except SuperfluidError as error:
        connection.send(LoadFailed(error.code, error.message))
        return EXIT_LOAD_FAILED
    with contextlib.closing(engine):
        kv_files = open_kv_files(settings, engine.facts, inbox.put)
        connection.send(Ready(settled_facts(engine.facts, settings.speculation)))
        cpus = usable_cpus()
        loop = TickLoop(
            engine,
            settings,
            inbox,
            connection.send,
            clock=SystemClock(),
            set_log_filter=logs.set_filter,
            rest=gc.collect,
            read_pressure=SystemPressure().read,
            kv_files=kv_files,
            debug=_print_line if "SUPERFLUID_DEBUG_TICK" in os.environ else None,
            debug_pressure=_print_line if "SUPERFLUID_DEBUG_PRESSURE" in os.environ else None,
            draft_model=draft_model,
            cpus=len(cpus),
            read_cores=CoreUse(cpus).read,
            read_waited=WaitedTime().read,
        )
        _collect_at_rest_only()
        try:
            loop.run()
        except ConnectionError:
            # The daemon has gone, and a send noticed it before the reader did: nobody is left to tell.
            return 0
    return 0


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _collect_at_rest_only() -> None:
    """Ticks make next to no reference cycles, and a collection in the middle of one is a pause in every stream."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _follow_the_daemon() -> None:
    """A Ctrl-C on the terminal is the daemon's to judge; its death is ours too, however it comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # Sent when the *thread* that spawned this process ends: the supervisor spawns from the daemon's main thread.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _leave(fault: str) -> None:
    """At once, even in the middle of a step: nobody is left to tell. Called by the reader thread."""
    if fault:
        print(fault, file=sys.stderr, flush=True)
    os._exit(1 if fault else 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
