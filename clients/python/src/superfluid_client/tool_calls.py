"""A session's tool calls: answering, settling and listing them; permissions."""

from superfluid_client.asking import SessionRequests, event_id
from superfluid_client.parameters import ToolOutcome
from superfluid_client.reading import reading
from superfluid_client.records import Event, LedgerEntry, ToolCall


class ToolCalls(SessionRequests):
    """A call is named by its ``ToolCall``, by its ``ToolUse`` event, or by that event's id."""

    async def tool_result(self, call: ToolCall | Event | int, content: str) -> Event:
        """Answers a call the model made."""
        return await self._commit("AppendToolResult", {"call_id": event_id(call), "content": content})

    async def tool_failed(self, call: ToolCall | Event | int, note: str = "") -> Event:
        """Ends a call that has no result, because it failed. The model is not told."""
        return await self._end_call(call, ToolOutcome.FAILED, note)

    async def tool_cancelled(self, call: ToolCall | Event | int, note: str = "") -> Event:
        """Ends a call that has no result, because it was cancelled. The model is not told."""
        return await self._end_call(call, ToolOutcome.CANCELLED, note)

    async def cancel_tool(self, call: ToolCall | Event | int) -> Event:
        """Asks whoever runs the call to stop. The call stays open until it is answered or ended."""
        return await self._commit("RequestToolCancel", {"call_id": event_id(call)})

    async def open_tool_calls(self) -> list[ToolCall]:
        """Calls of the model that nobody has answered or ended yet."""
        payload = await self._ask("OpenToolCalls", {}, "ToolCalls")
        with reading("ToolCalls"):
            return [ToolCall(*call) for call in payload["calls"]]

    async def ledger(self) -> list[LedgerEntry]:
        """All calls the model made in this session, and how each of them stands. Inherited ones are their parents'."""
        payload = await self._ask("Ledger", {}, "Ledger")
        with reading("Ledger"):
            return [LedgerEntry.from_json(call_id, entry) for call_id, entry in payload["entries"]]

    # ---- permissions

    async def request_permission(self, text: str, call: ToolCall | Event | int | None = None) -> Event:
        """Records a question to a person, about an open call or about none. Until it is answered, generating raises
        PermissionPending. The event is what ``respond_permission`` answers."""
        return await self._commit("RequestPermission", {"call_id": 0 if call is None else event_id(call), "text": text})

    async def respond_permission(self, request: Event | int, granted: bool) -> Event:
        """Answers a question. Saying no does not end the call that it was about."""
        return await self._commit("RespondPermission", {"request_id": event_id(request), "granted": granted})

    async def _end_call(self, call: ToolCall | Event | int, outcome: ToolOutcome, note: str) -> Event:
        fields = {"call_id": event_id(call), "outcome": int(outcome), "note": note}
        return await self._commit("AppendToolOutcome", fields)
