"""The session API's vocabulary in one place: ``requests``, ``responses``, the unions, and the shared nouns."""

from superfluid.domain import events
from superfluid.domain.events import Body, Event, GenParams, PurgeMode, RebaseEdit
from superfluid.native import requests, responses
from superfluid.native.requests import Request
from superfluid.native.responses import Inspection, LedgerEntry, Response, SessionSummary, Tier

__all__ = [
    "Body",
    "Event",
    "GenParams",
    "Inspection",
    "LedgerEntry",
    "PurgeMode",
    "RebaseEdit",
    "Request",
    "Response",
    "SessionSummary",
    "Tier",
    "events",
    "requests",
    "responses",
]
