"""What becomes of adapters when the worker is lost, told message by message."""

import asyncio

import pytest

from superfluid.errors import AdapterRefusedError, ModelLoadingError, SuperfluidError
from superfluid.worker.adapter_book import AdapterBook
from superfluid.worker.protocol import AdapterLoaded, LoadAdapter, ToWorker


class Stage:
    """A book whose worker is played by the test."""

    def __init__(self) -> None:
        self.sent: list[ToWorker] = []
        self.lost: list[int] = []
        self.book = AdapterBook(self._send)
        self.book.on_lost = lambda adapter, _error: self.lost.append(adapter)

    def _send(self, message: ToWorker) -> bool:
        self.sent.append(message)
        return True

    async def ask(self, adapter: int, path: str = "") -> "asyncio.Future[None]":
        asked = asyncio.ensure_future(self.book.load_adapter(adapter, path or f"/{adapter}"))
        await asyncio.sleep(0)
        return asked

    async def load(self, *adapters: int) -> None:
        for adapter in adapters:
            asked = await self.ask(adapter)
            self.book.answered(AdapterLoaded(adapter, f"print {adapter}"))
            await asked

    def respawn(self) -> list[int]:
        """What a new worker is told to load."""
        return [load.adapter for load in self.book.for_new_worker(set())[0]]


async def test_worker_that_dies_over_a_new_adapter_costs_that_one_only() -> None:
    stage = Stage()
    await stage.load(1, 2)
    bad, behind = await stage.ask(3), await stage.ask(4)
    stage.book.worker_lost()
    with pytest.raises(AdapterRefusedError, match="died while it loaded /3"):
        await bad
    with pytest.raises(ModelLoadingError):
        await behind
    assert stage.respawn() == [1, 2]
    assert stage.lost == []


async def test_worker_that_dies_while_it_loads_adapters_again_costs_none_the_first_time() -> None:
    stage = Stage()
    await stage.load(1, 2, 3)
    stage.book.worker_lost()
    assert stage.respawn() == [1, 2, 3]
    stage.book.answered(AdapterLoaded(1, "print 1"))
    stage.book.worker_lost()
    assert stage.respawn() == [1, 2, 3]
    assert stage.lost == []


async def test_adapter_that_a_second_worker_dies_over_is_given_up_and_the_others_stay() -> None:
    stage = Stage()
    await stage.load(1, 2, 3)
    for _ in range(2):
        stage.book.worker_lost()
        stage.respawn()
        stage.book.answered(AdapterLoaded(1, "print 1"))
    stage.book.worker_lost()
    assert stage.lost == [2]
    assert stage.respawn() == [1, 3]


async def test_losses_that_a_load_came_between_do_not_add_up() -> None:
    stage = Stage()
    await stage.load(1)
    for _ in range(4):
        stage.book.worker_lost()
        stage.respawn()
        stage.book.worker_lost()
        stage.respawn()
        stage.book.answered(AdapterLoaded(1, "print 1"))
    assert stage.lost == []


async def test_worker_that_dies_before_it_is_ready_costs_no_adapter() -> None:
    stage = Stage()
    await stage.load(1)
    for _ in range(5):
        stage.book.worker_lost()
    assert stage.respawn() == [1]


async def test_file_is_tried_out_before_the_worker_hears_of_it_and_must_stay_the_same() -> None:
    stage = Stage()

    async def try_out(path: str) -> str:
        assert not stage.sent
        return f"tried {path}"

    stage.book.try_out = try_out
    asked = await stage.ask(1)
    await asyncio.sleep(0)
    assert stage.sent == [LoadAdapter(1, "/1", "tried /1")]
    stage.book.answered(AdapterLoaded(1, "tried /1"))
    await asked


async def test_file_that_fails_the_trial_never_reaches_the_worker() -> None:
    stage = Stage()

    async def try_out(path: str) -> str:
        raise AdapterRefusedError(f"{path} is deadly")

    stage.book.try_out = try_out
    with pytest.raises(SuperfluidError, match="is deadly"):
        await (await stage.ask(1))
    assert stage.sent == []
    assert stage.respawn() == []


async def test_file_that_passed_the_trial_is_given_a_second_chance_and_then_never_another() -> None:
    stage = Stage()

    async def try_out(path: str) -> str:
        return "print"

    stage.book.try_out = try_out
    for adapter, refusal in ((1, ModelLoadingError), (2, AdapterRefusedError)):
        asked = await stage.ask(adapter, "/1")
        await asyncio.sleep(0)
        stage.book.worker_lost()
        with pytest.raises(refusal):
            await asked
    sent = len(stage.sent)
    with pytest.raises(AdapterRefusedError, match="died while it loaded /1"):
        await stage.book.load_adapter(3, "/1")
    assert len(stage.sent) == sent
