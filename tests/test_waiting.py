"""A busy machine makes no test fail: waits count the seconds in which a core was idle."""

import pytest

from tests.waiting import SpareTime, until


def test_only_seconds_with_an_idle_core_count() -> None:
    idle = [0.0, 0.0, 0.5, 1.5, 5.5, 5.5]  # of both cores together, until each second
    moments = enumerate(idle)
    spare = SpareTime(lambda: next(moments))
    assert [spare.seconds() for _ in range(5)] == [0.0, 0.5, 1.5, 2.5, 2.5]


def test_parts_of_a_second_are_added_up() -> None:
    moments = iter([(0.0, 0.0), (0.4, 0.4), (0.8, 0.8), (1.2, 1.2)])
    spare = SpareTime(lambda: next(moments))
    assert [spare.seconds() for _ in range(3)] == [0.0, 0.0, 1.2]


def test_a_wait_returns_what_it_waited_for_and_says_what_did_not_come() -> None:
    assert until(lambda: "it") == "it"
    with pytest.raises(AssertionError, match="it did not come"):
        until(lambda: False, 0.0, lambda: "it did not come")
