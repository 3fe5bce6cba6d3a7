import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A worker that runs in the test process takes the signals: give them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
