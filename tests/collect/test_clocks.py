"""A clock that is wrong or jumps neither ends sessions early nor keeps them open."""

from clawctl.collect.clocks import Clocks

HOUR = 3600.0


class Time:
    """A wall clock that can be set and a steady one that cannot."""

    def __init__(self) -> None:
        self.steady = 0.0
        self.clocks = Clocks(lambda: 10_000.0, lambda: self.steady)

    def poll(self, at: float, followed: set[str]) -> None:
        self.steady = at
        self.clocks.begin_poll(followed)

    def when(self, file: str, finished_at: float) -> float:
        """The moment of an exchange by our clock."""
        return finished_at + self.clocks.offset_of(file, finished_at)


def test_existing_lines_have_their_writers_time_but_never_a_future_one() -> None:
    time = Time()
    time.poll(0.0, set())
    assert time.when("a", 4_000.0) == 4_000.0
    assert time.when("a", 10_000.0 + 2 * HOUR) == 10_000.0  # its clock is two hours ahead
    assert time.when("a", 10_000.0 + 2 * HOUR - 5) == 9_995.0


def test_lines_appended_while_following_are_newer_than_the_previous_poll() -> None:
    time = Time()
    time.poll(0.0, set())
    assert time.when("slow", 9_999.0 - 2 * HOUR) == 9_999.0 - 2 * HOUR  # there is no better evidence yet
    time.poll(1.0, {"slow"})
    assert time.when("slow", 10_000.5 - 2 * HOUR) == 10_000.0
    assert time.when("slow", 10_000.7 - 2 * HOUR) == 10_000.2


def test_a_jump_of_a_writers_clock_is_taken_out_forwards_and_backwards() -> None:
    time = Time()
    time.poll(0.0, set())
    assert time.when("a", 10_000.0) == 10_000.0
    time.poll(10.0, {"a"})
    assert time.when("a", 10_009.0 + 3 * HOUR) == 10_010.0
    time.poll(20.0, {"a"})
    assert time.when("a", 10_019.0 + 3 * HOUR) == 10_020.0
    time.poll(30.0, {"a"})
    assert time.when("a", 10_029.0 - HOUR) == 10_020.0


def test_an_old_file_that_appears_is_old() -> None:
    time = Time()
    time.poll(0.0, set())
    time.poll(10.0, {"a"})
    assert time.when("copied here", 5_000.0) == 5_000.0
