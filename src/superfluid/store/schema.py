"""The store's tables and the steps that bring an older store forward. ``user_version`` counts the steps taken."""

import secrets

import apsw

from superfluid.errors import StoreError

# Step n brings a store from version n to n + 1. Steps are never edited once released.
STEPS: tuple[str, ...] = (
    """
    CREATE TABLE store (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    CREATE TABLE session (
        id INTEGER PRIMARY KEY,
        parent INTEGER,
        base INTEGER,
        fork_at INTEGER NOT NULL,
        origin INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        start INTEGER NOT NULL,
        events INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        open_tool_calls INTEGER NOT NULL,
        title TEXT,
        is_archived INTEGER NOT NULL,
        meta_version INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        is_purged INTEGER NOT NULL,
        touched_unix_ms INTEGER NOT NULL,
        qos_class INTEGER NOT NULL,
        is_batch_invariant INTEGER NOT NULL,
        is_generating INTEGER NOT NULL
    );
    CREATE INDEX session_generating ON session (id) WHERE is_generating;
    CREATE INDEX session_parent ON session (parent) WHERE parent IS NOT NULL;
    CREATE INDEX session_base ON session (base) WHERE base IS NOT NULL;
    CREATE INDEX session_http_age ON session (touched_unix_ms) WHERE origin = 1 AND NOT is_purged;
    CREATE TABLE event (
        session INTEGER NOT NULL,
        id INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        ts_unix_ms INTEGER NOT NULL,
        body BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        PRIMARY KEY (session, id)
    ) WITHOUT ROWID;
    CREATE TABLE prefix (
        digest BLOB PRIMARY KEY,
        session INTEGER NOT NULL,
        at_event INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX prefix_session ON prefix (session);
    """,
    """
    CREATE TABLE erasure (
        session INTEGER PRIMARY KEY,
        shared_events INTEGER NOT NULL,
        content_end INTEGER
    );
    """,
)
# Stores below this version have pages with leftovers of what was erased (see ``store/page.py``).
_CLEAN_SINCE = 2


def migrate(connection: apsw.Connection) -> None:
    """Brings the store to the version of this program, in one transaction. Raises StoreError for a newer one."""
    version = connection.execute("PRAGMA user_version").get
    assert isinstance(version, int)
    if version > len(STEPS):
        raise StoreError(
            f"the session store was written by a newer superfluid (version {version} of its tables; this program knows "
            f"{len(STEPS)}): start that version, or choose another directory with --sessions"
        )
    if version == len(STEPS):
        return
    if 0 < version < _CLEAN_SINCE:
        _rewrite(connection)
    with connection:
        for step in STEPS[version:]:
            connection.execute(step)
        if version == 0:
            connection.execute("INSERT INTO store VALUES ('store_id', ?), ('start', 0)", (secrets.token_bytes(16),))
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")


def _rewrite(connection: apsw.Connection) -> None:
    """Writes every page anew. Takes time and room in proportion to the store."""
    connection.execute("PRAGMA temp_store = FILE")
    try:
        connection.execute("VACUUM")
    except apsw.CorruptError:
        # A damaged page must not keep the server from starting; the session it belongs to is refused when it is read.
        return
    finally:
        connection.execute("PRAGMA temp_store = MEMORY")
