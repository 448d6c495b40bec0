"""What a session has besides its conversation: title and archive mark, scheduling class, pin; and its end."""

from superfluid_client.asking import SessionRequests
from superfluid_client.errors import VersionConflict
from superfluid_client.parameters import PurgeMode, QosClass
from superfluid_client.reading import reading
from superfluid_client.records import Event, Inspection, Warmth

_MOST_ATTEMPTS = 10


class Settings(SessionRequests):
    """All of it also works while the session is generating."""

    async def inspect(self) -> Inspection:
        """Everything about the session in one piece."""
        payload = await self._ask("Inspect", {}, "Inspection")
        with reading("Inspection"):
            return Inspection.from_json(payload["inspection"])

    async def warmth(self) -> Warmth:
        """Where how much of the session's input lies computed at this moment. A server that is older than this request
        refuses it."""
        payload = await self._ask("Warmth", {}, "Warmth")
        with reading("Warmth"):
            return Warmth.from_json(payload)

    async def set_meta(
        self, *, title: str | None = None, archived: bool | None = None, expected_version: int | None = None
    ) -> int:
        """Sets what is given, and returns the metadata's new version.

        With ``expected_version``, raises VersionConflict if somebody else has changed it since; without, the last one
        to say something wins.
        """
        if expected_version is not None:
            return await self._set_meta(expected_version, title, archived)
        for _ in range(_MOST_ATTEMPTS - 1):
            try:
                return await self._set_meta(await self._meta_version(), title, archived)
            except VersionConflict:
                continue
        return await self._set_meta(await self._meta_version(), title, archived)

    async def set_title(self, title: str) -> int:
        """Names the session in listings; the metadata's new version."""
        return await self.set_meta(title=title)

    async def archive(self, archived: bool = True) -> int:
        """Takes the session out of listings, or puts it back; all else goes on working. The metadata's new version."""
        return await self.set_meta(archived=archived)

    async def set_qos(self, qos_class: QosClass | int, *, batch_invariant: bool = False) -> Event:
        """Sets the scheduling class (0 to 3) of the generations to come."""
        return await self._commit("SetQos", {"class": int(qos_class), "batch_invariant": batch_invariant})

    async def pin(self, ttl_s: float) -> int:
        """Asks to hold the session's prefix in the cache for ``ttl_s`` seconds, 0 to let it go; until when, as Unix
        time in ms."""
        payload = await self._ask("Pin", {"ttl_ms": round(ttl_s * 1000)}, "Pinned")
        with reading("Pinned"):
            return int(payload["deadline_unix_ms"])

    async def purge(self, mode: PurgeMode, *, expected_generation: int = 0) -> list[int]:
        """Ends the session for good and erases it: from now on it is refused with SessionPurged, and listed nowhere.
        The ids of all that were purged.

        ``CASCADE`` takes everything with it that was made from it. ``REROOT`` lets its forks live on; they keep what
        they share with it. ``expected_generation`` is what ``SessionSummary.generation`` says; raises VersionConflict
        if it is another one. A generation in flight is cancelled; the answer waits for its end.
        """
        fields = {"expected_generation": expected_generation, "mode": str(mode)}
        payload = await self._ask("Purge", fields, "Purged")
        with reading("Purged"):
            return list(payload["sessions"])

    async def _set_meta(self, expected_version: int, title: str | None, archived: bool | None) -> int:
        fields = {"expected_version": expected_version, "title": title, "archived": archived}
        payload = await self._ask("SetMeta", fields, "Meta")
        with reading("Meta"):
            return int(payload["version"])

    async def _meta_version(self) -> int:
        return (await self.inspect()).summary.meta_version
