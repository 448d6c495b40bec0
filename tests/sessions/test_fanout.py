"""A subscription's own rules: order, bounds, ends."""

from tests.fixtures.session_core import PARAMS

from superfluid.domain.events import Created, Event, QosSet
from superfluid.domain.reply import Channel
from superfluid.domain.state import SessionState
from superfluid.sessions.fanout import MAX_WAITING, SessionSubscription
from superfluid.sessions.open_session import OpenSession
from superfluid.sessions.session_api import ProvisionalText
from superfluid.store.interface import Origin

A = ProvisionalText(Channel.TEXT, "a")


def event(event_id: int) -> Event:
    return Event(event_id, 1, 0, Created(None, PARAMS) if event_id == 0 else QosSet(1, False))


def events(*event_ids: int) -> list[Event]:
    return [event(event_id) for event_id in event_ids]


def subscribe(cursor: int = 0, *, wants_provisional: bool = True) -> tuple[OpenSession, SessionSubscription]:
    session = OpenSession(SessionState(1), None, Origin.SESSION_API, 1)
    return session, SessionSubscription(5, session, cursor, wants_provisional=wants_provisional)


async def read(subscription: SessionSubscription) -> list[object]:
    """What waits, as ids and texts; ends the subscription if it has not ended."""
    items: list[object] = []
    async for batch in subscription:
        items += [item.event_id if isinstance(item, Event) else item.text for item in batch]
        if subscription.end_reason is None:
            break
    return items


async def test_live_items_before_the_backlog_wait_for_it_and_nothing_comes_twice() -> None:
    session, subscription = subscribe()
    session.watchers[0].committed(events(2, 3))
    session.watchers[0].provisional(Channel.TEXT, "a")
    session.watchers[0].committed(events(4))
    subscription.start(events(0, 1, 2))
    session.watchers[0].committed(events(5))
    assert await read(subscription) == [0, 1, 2, 3, "a", 4, 5]


async def test_backlog_before_the_cursor_is_not_given() -> None:
    session, subscription = subscribe(cursor=3)
    subscription.start(events(3))
    session.watchers[0].committed(events(4))
    assert await read(subscription) == [3, 4]


async def test_text_is_not_given_to_who_did_not_ask() -> None:
    session, subscription = subscribe(wants_provisional=False)
    subscription.start(events(0))
    session.watchers[0].provisional(Channel.TEXT, "a")
    assert await read(subscription) == [0]


async def test_one_item_more_than_the_queue_holds_cuts_it_and_what_waits_is_given() -> None:
    session, subscription = subscribe()
    subscription.start([])
    (watcher,) = session.watchers
    for number in range(MAX_WAITING - 1):
        watcher.committed(events(number))
    watcher.provisional(Channel.TEXT, "a")
    assert subscription.end_reason is None
    watcher.committed(events(MAX_WAITING - 1))
    assert subscription.end_reason == "lagged"
    assert session.watchers == []
    assert await read(subscription) == [*range(MAX_WAITING - 1), "a"]


async def test_backlog_counts_for_no_bound_and_reading_makes_room() -> None:
    session, subscription = subscribe()
    subscription.start(events(*range(3 * MAX_WAITING)))
    (watcher,) = session.watchers
    watcher.committed(events(*range(3 * MAX_WAITING, 4 * MAX_WAITING)))
    assert len(await read(subscription)) == 4 * MAX_WAITING
    watcher.committed(events(*range(4 * MAX_WAITING, 5 * MAX_WAITING)))
    assert subscription.end_reason is None


async def test_closing_drops_what_waits() -> None:
    session, subscription = subscribe()
    subscription.start(events(0))
    subscription.close()
    assert await read(subscription) == []
    assert (subscription.end_reason, session.watchers) == ("unsubscribed", [])


async def test_first_reason_to_end_counts() -> None:
    for reasons in (("purged", "publisher closed"), ("publisher closed", "purged")):
        _, subscription = subscribe()
        subscription.start(events(0))
        for reason in reasons:
            subscription.ended(reason)
        subscription.close()
        assert subscription.end_reason == reasons[0]
        assert await read(subscription) == [0]


async def test_subscription_that_ends_before_its_backlog_came_gives_the_backlog_only_if_not_closed() -> None:
    _, subscription = subscribe()
    subscription.close()
    subscription.start(events(0))
    assert await read(subscription) == []
