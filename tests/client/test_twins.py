"""The blocking client has everything that the one for asyncio has, said once."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from superfluid_client import AsyncClient, AsyncSession, Client, Session
from superfluid_client.blocking import BlockingNetwork, run

# What streams, or opens and closes; and what only the parts of the package ask of each other.
WRITTEN_TWICE = {"stream", "watch", "close", "session_of", "sampling"}
INTERNAL = {"open_stream", "open_generation", "note_reply", "patience"}


def public_methods(twin: type) -> dict[str, Callable[..., Any]]:
    return {
        name: member
        for name, member in inspect.getmembers(twin, callable)
        if not name.startswith("_") and name not in INTERNAL | WRITTEN_TWICE
    }


@pytest.mark.parametrize(("twin", "face"), [(AsyncClient, Client), (AsyncSession, Session)])
def test_blocking_class_has_every_method_of_its_twin(twin: type, face: type) -> None:
    assert public_methods(face).keys() == public_methods(twin).keys()
    assert all(hasattr(face, name) == hasattr(twin, name) for name in WRITTEN_TWICE)


@pytest.mark.parametrize(("twin", "face"), [(AsyncClient, Client), (AsyncSession, Session)])
def test_blocking_method_has_the_parameters_and_the_words_of_its_twin(twin: type, face: type) -> None:
    for name, method in public_methods(twin).items():
        blocking = getattr(face, name)
        assert inspect.signature(blocking).parameters.keys() == inspect.signature(method).parameters.keys()
        assert inspect.getdoc(blocking) == inspect.getdoc(method)
        assert inspect.getdoc(blocking), f"{name} has no docstring"
        assert not inspect.iscoroutinefunction(blocking)
        assert "Async" not in str(inspect.signature(blocking).return_annotation)


def test_streams_and_watches_take_the_same_in_both() -> None:
    for name in ("stream", "watch"):
        ours, theirs = inspect.signature(getattr(Session, name)), inspect.signature(getattr(AsyncSession, name))
        assert ours.parameters == theirs.parameters


def test_blocking_run_of_something_that_waits_for_a_loop_is_a_mistake() -> None:
    class Forever:
        def __await__(self) -> Any:
            yield

    async def wait() -> None:
        await Forever()

    with pytest.raises(RuntimeError, match="event loop"):
        run(wait())


def test_blocking_run_raises_what_the_coroutine_raises() -> None:
    async def fail() -> None:
        await BlockingNetwork().sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(fail())
