"""How many files and sockets the daemon may have open: every client takes one. Runs in the daemon."""

import resource

WANTED = 65_536


def raise_descriptor_limit() -> int:
    """Raises the process's own limit to ``WANTED``, or as far as the system lets it. What it is then.

    Shells start processes with 1,024, macOS with 256; whoever made that many connections would lock everybody else out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):
        # macOS calls it unlimited and has a limit all the same. The daemon runs with what it has.
        return soft
    return limit
