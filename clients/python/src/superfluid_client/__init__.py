"""Client of superfluid's session API: durable, forkable conversations with a local language model.

from superfluid_client import Client, Sampling

session = Client().session(Sampling(temperature=0.7, seed=1), system="You are brief.")
session.user("Name three rivers.")
for chunk in session.stream(max_tokens=256):
    print(chunk.text, end="", flush=True)
"""

from superfluid_client.async_client import DEFAULT_URL, AsyncClient
from superfluid_client.async_session import AsyncSession
from superfluid_client.async_stream import AsyncReplyStream
from superfluid_client.async_watch import AsyncWatch
from superfluid_client.client import Client
from superfluid_client.errors import (
    ConnectionLost,
    Forbidden,
    GenerationFailed,
    InfillUnsupported,
    ModelLoading,
    NothingInFlight,
    PermissionPending,
    RequestRefused,
    ServerStopping,
    ServerUnreachable,
    SessionBusy,
    SessionPurged,
    SuperfluidError,
    Throttled,
    Unauthorized,
    UnexpectedReply,
    UnknownSession,
    VersionConflict,
)
from superfluid_client.parameters import (
    BlockKind,
    Drop,
    PurgeMode,
    QosClass,
    RebaseEdit,
    Replace,
    Role,
    Sampling,
    ToolOutcome,
)
from superfluid_client.records import (
    CallState,
    Channel,
    Chunk,
    Completion,
    Event,
    Finish,
    Inspection,
    LedgerEntry,
    MediaSweep,
    Message,
    Reply,
    SessionSummary,
    ToolCall,
    TreeNode,
    Warmth,
)
from superfluid_client.session import Session
from superfluid_client.stream import ReplyStream
from superfluid_client.version import __version__
from superfluid_client.watch import Watch

__all__ = [
    "DEFAULT_URL",
    "AsyncClient",
    "AsyncReplyStream",
    "AsyncSession",
    "AsyncWatch",
    "BlockKind",
    "CallState",
    "Channel",
    "Chunk",
    "Client",
    "Completion",
    "ConnectionLost",
    "Drop",
    "Event",
    "Finish",
    "Forbidden",
    "GenerationFailed",
    "InfillUnsupported",
    "Inspection",
    "LedgerEntry",
    "MediaSweep",
    "Message",
    "ModelLoading",
    "NothingInFlight",
    "PermissionPending",
    "PurgeMode",
    "QosClass",
    "RebaseEdit",
    "Replace",
    "Reply",
    "ReplyStream",
    "RequestRefused",
    "Role",
    "Sampling",
    "ServerStopping",
    "ServerUnreachable",
    "Session",
    "SessionBusy",
    "SessionPurged",
    "SessionSummary",
    "SuperfluidError",
    "Throttled",
    "ToolCall",
    "ToolOutcome",
    "TreeNode",
    "Unauthorized",
    "UnexpectedReply",
    "UnknownSession",
    "VersionConflict",
    "Warmth",
    "Watch",
    "__version__",
]
