"""New sessions that begin as this one does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superfluid_client.asking import event_id
from superfluid_client.history import History
from superfluid_client.parameters import RebaseEdit, Replace, Role, Sampling
from superfluid_client.reading import reading
from superfluid_client.records import Event, Message

if TYPE_CHECKING:
    from superfluid_client.async_client import AsyncClient
    from superfluid_client.async_session import AsyncSession


class Branching(History):
    """The session itself stays as it is. A child draws as it does, but with ``seed`` if given, or altogether as
    ``sampling`` says."""

    def __init__(self, client: "AsyncClient", session_id: int, sampling: Sampling | None = None) -> None:
        super().__init__(client, session_id)
        self._sampling = sampling

    async def sampling(self) -> Sampling:
        """How its tokens are drawn; a session keeps that for life, and forks may differ."""
        if self._sampling is None:
            self._sampling = (await self.inspect()).sampling
        return self._sampling

    async def fork(
        self, at: int | Event | None = None, *, seed: int | None = None, sampling: Sampling | None = None
    ) -> "AsyncSession":
        """A new session with the events before ``at`` (default: all). It shares them, and starts warm on them.

        It draws as this session does, but with ``seed`` if given, or altogether as ``sampling`` says.
        """
        at_event = await self.event_count() if at is None else event_id(at)
        return await self._branch("Fork", {"at_event": at_event}, seed, sampling)

    async def fork_after(
        self, event: int | Event | Message, *, seed: int | None = None, sampling: Sampling | None = None
    ) -> "AsyncSession":
        """A fork that has ``event`` as its last one."""
        last = event.last_event_id if isinstance(event, Message) else event_id(event)
        return await self.fork(last + 1, seed=seed, sampling=sampling)

    async def edit(
        self,
        event: int | Event | Message,
        text: str,
        *,
        keep_rest: bool = False,
        seed: int | None = None,
        sampling: Sampling | None = None,
    ) -> "AsyncSession":
        """A new session with a message replaced. What followed it is dropped, or kept with ``keep_rest``.

        Raises ValueError if ``event`` is no message of this session.
        """
        start = event_id(event)
        events = await self.events(start)
        if not events or events[0].kind != "Message":
            raise ValueError(f"event {start} of session {self.id} is no message")
        end = start + 1 if keep_rest else events[-1].id + 1
        replacement = Replace(start, end, text, Role(events[0].fields["role"]))
        return await self.rebase([replacement], seed=seed, sampling=sampling)

    async def rebase(
        self,
        edits: Sequence[RebaseEdit | Mapping[str, Any]],
        *,
        seed: int | None = None,
        sampling: Sampling | None = None,
    ) -> "AsyncSession":
        """A new session with ranges of events dropped, or replaced by a message. The ranges are in order, do not
        overlap and spare event 0. An edit may also be given in its JSON form."""
        plain = [edit if isinstance(edit, Mapping) else edit.to_json() for edit in edits]
        return await self._branch("Rebase", {"edits": plain}, seed, sampling)

    async def trim(self, to_event: int | Event) -> "AsyncSession":
        """A new session with the events before ``to_event``."""
        payload = await self._ask("Trim", {"to_event": event_id(to_event)}, "Created")
        return self._child(payload, self._sampling)

    async def _branch(
        self, verb: str, fields: Mapping[str, Any], seed: int | None, sampling: Sampling | None
    ) -> "AsyncSession":
        if seed is not None:
            sampling = replace(sampling or await self.sampling(), seed=seed)
        params = None if sampling is None else sampling.to_json()
        payload = await self._ask(verb, {**fields, "params": params}, "Created")
        return self._child(payload, sampling or self._sampling)

    def _child(self, payload: Any, sampling: Sampling | None) -> "AsyncSession":
        with reading("Created"):
            return self.client.session_of(payload["session"], sampling)
