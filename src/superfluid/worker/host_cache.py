"""The exported lane states in host memory, under the scheduler's entry ids. Runs in the worker, on the tick loop."""

from superfluid.engine.interface import Engine
from superfluid.engine.lane_state import State


class HostCache:
    """Keeps blobs. What stays and what goes is the scheduler's decision."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def save(self, engine: Engine, lane: int, entry_id: int) -> int:
        """Exports ``lane``; returns the size. Raises EngineFaultError or MemoryError, and keeps nothing then."""
        assert entry_id not in self._states, "entry ids are used once"
        state = engine.export_lane(lane)
        self.put(entry_id, state)
        return len(state)

    def put(self, entry_id: int, state: State) -> None:
        """Keeps a state that came from elsewhere."""
        assert entry_id not in self._states, "entry ids are used once"
        self._states[entry_id] = state
        self._size_bytes += len(state)

    def state(self, entry_id: int) -> State | None:
        return self._states.get(entry_id)

    def restore(self, engine: Engine, lane: int, entry_id: int, length: int) -> bool:
        """Replaces the lane by the entry of ``length`` tokens. False, and the lane is empty, if there is none such."""
        state = self._states.get(entry_id)
        if state is None:
            engine.clear(lane)
            return False
        return engine.import_lane(lane, state, length)

    def drop(self, entry_id: int) -> None:
        state = self._states.pop(entry_id, None)
        if state is not None:
            self._size_bytes -= len(state)

    def check_integrity(self) -> None:
        """Raises AssertionError if the books are wrong."""
        assert self._size_bytes == sum(len(state) for state in self._states.values())
