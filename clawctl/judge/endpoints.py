"""Several judge endpoints as one: which is asked next, how fast, and which rests."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from clawctl.run.endpoint import Endpoint

FIRST_REST_S, LONGEST_REST_S = 0.1, 5.0
LONGEST_RETRY_AFTER_S = 300.0
TROUBLES = 3  # calls in a row that break, before the endpoint rests


@dataclass(slots=True)
class Place:
    """One endpoint and how it is doing."""

    find: Callable[[], Endpoint | None]  # its address, as far as known: this run's server may move
    endpoint: Endpoint | None = None
    in_flight: int = 0
    made: int = 0
    rests_until: float = 0.0  # on the monotonic clock
    rests: int = 0  # in a row
    troubles: int = 0  # broken calls in a row
    next_slot: float = 0.0  # when the rate limit lets the next call begin

    def locate(self) -> Endpoint | None:
        self.endpoint = self.endpoint or self.find()
        return self.endpoint

    def answered(self) -> None:
        self.rests = self.troubles = 0

    def broke(self) -> None:
        """A call timed out, broke, or ended in a 5xx."""
        self.troubles += 1
        if self.troubles >= TROUBLES:
            self.rest(None)

    def rest(self, retry_after_s: float | None) -> None:
        """Skip this endpoint for as long as it requests, or a little longer each time, with jitter between clients."""
        now = time.monotonic()
        if self.rests_until > now and retry_after_s is None:
            return  # a call that was under way when it began to rest
        wait = min(FIRST_REST_S * 2 ** min(self.rests, 10), LONGEST_REST_S) * random.uniform(0.5, 1.0)
        self.rests += 1
        self.rests_until = max(self.rests_until, now + (wait if retry_after_s is None else retry_after_s))
        self.endpoint = None


class Places:
    """The endpoint with the fewest calls in flight that does not rest is asked next; each at most `per_s` times a second."""

    def __init__(self, finders: list[Callable[[], Endpoint | None]], per_s: float | None) -> None:
        self.all = [Place(find) for find in finders]
        self._gap_s = 1.0 / per_s if per_s else 0.0

    async def take(self, shun: Place | None = None) -> Place:
        """An endpoint to call, once its rate allows. `shun` is used only if there is no other. Return it with `in_flight -= 1`."""
        while True:
            now = time.monotonic()
            awake = [place for place in self.all if place.rests_until <= now]
            if awake:
                break
            await asyncio.sleep(min(place.rests_until for place in self.all) - now)
        begins = {id(place): max(place.next_slot, now) for place in awake}
        place = min(awake, key=lambda place: (place is shun, begins[id(place)], place.in_flight, place.made))
        place.in_flight += 1
        place.made += 1
        place.next_slot = begins[id(place)] + self._gap_s
        try:
            await asyncio.sleep(begins[id(place)] - now)
        except asyncio.CancelledError:
            place.in_flight -= 1
            raise
        return place


def retry_after_s(header: str | None) -> float | None:
    """The seconds that a Retry-After header asks for (a number or a date), within reason; None without a valid one."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S) if seconds == seconds else None
