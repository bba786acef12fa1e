from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from vitconv.io import threads
from vitconv.io.threads import NAME, in_threads


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "processors", lambda: 4)


def running() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == NAME]


def test_every_item_is_worked_on_once_and_by_several_threads() -> None:
    seen: list[int] = []
    who: set[int] = set()

    def work(item: int) -> None:
        time.sleep(0.001)
        seen.append(item)
        who.add(threading.get_ident())

    in_threads(work, range(100))
    assert sorted(seen) == list(range(100))
    assert 1 < len(who) <= 4
    assert running() == []


def test_one_thread_is_the_calling_one() -> None:
    who: set[int] = set()
    in_threads(lambda _: who.add(threading.get_ident()), iter(range(100)), 1)
    assert who == {threading.get_ident()}


def test_items_are_made_by_one_thread_at_a_time() -> None:
    inside: list[int] = []
    overlaps: list[int] = []

    def items() -> Iterator[int]:
        for i in range(50):
            inside.append(i)
            time.sleep(0.001)
            if len(inside) > 1:
                overlaps.append(i)
            inside.pop()
            yield i

    in_threads(lambda _: None, items())
    assert overlaps == []


@pytest.mark.parametrize("where", ["work", "items"])
def test_the_first_error_is_raised_and_ends_all(where: str) -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for i in range(1000):
            if where == "items" and i == 20:
                raise ValueError("no more")
            yield i

    def work(item: int) -> None:
        begun.append(item)
        time.sleep(0.001)
        if where == "work" and item == 20:
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        in_threads(work, items())
    assert len(begun) < 40
    assert running() == []


def test_an_interrupt_of_the_calling_thread_waits_for_the_others() -> None:
    caller = threading.get_ident()

    def work(item: int) -> None:
        if threading.get_ident() == caller:
            raise KeyboardInterrupt
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        in_threads(work, range(100))
    assert running() == []
