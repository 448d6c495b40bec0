"""Client of superfluid's session API: durable, forkable conversations with a local language model.

from superfluid_client import Client, Sampling

session = Client().session(Sampling(temperature=0.7, seed=1), system="You are brief.")
session.user("Name three rivers.")
for chunk in session.stream(max_tokens=256):
    print(chunk.text, end="", flush=True)
"""

from superfluid_client.client import Client
from superfluid_client.errors import (
    ConnectionLost,
    Forbidden,
    GenerationFailed,
    ModelLoading,
    NothingInFlight,
    RequestRefused,
    ServerUnreachable,
    SessionBusy,
    SuperfluidError,
    Throttled,
    Unauthorized,
    UnexpectedReply,
    UnknownSession,
)
from superfluid_client.parameters import Drop, QosClass, RebaseEdit, Replace, Role, Sampling
from superfluid_client.records import (
    Channel,
    Chunk,
    Event,
    Finish,
    Inspection,
    Message,
    Reply,
    SessionSummary,
    ToolCall,
    TreeNode,
)
from superfluid_client.session import Session
from superfluid_client.stream import ReplyStream
from superfluid_client.version import __version__

__all__ = [
    "Channel",
    "Chunk",
    "Client",
    "ConnectionLost",
    "Drop",
    "Event",
    "Finish",
    "Forbidden",
    "GenerationFailed",
    "Inspection",
    "Message",
    "ModelLoading",
    "NothingInFlight",
    "QosClass",
    "RebaseEdit",
    "Replace",
    "Reply",
    "ReplyStream",
    "RequestRefused",
    "Role",
    "Sampling",
    "ServerUnreachable",
    "Session",
    "SessionBusy",
    "SessionSummary",
    "SuperfluidError",
    "Throttled",
    "ToolCall",
    "TreeNode",
    "Unauthorized",
    "UnexpectedReply",
    "UnknownSession",
    "__version__",
]
