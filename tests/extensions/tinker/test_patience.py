"""A call to a service that does not come back."""

import logging
import socket
import threading

import pytest

from clawctl.errors import ClawError
from clawctl.extensions.tinker import patience
from clawctl.extensions.tinker.patience import patient


def test_a_call_that_returns_gives_its_result_and_its_error() -> None:
    assert patient(lambda: 3, "Tinker forward", None) == 3
    with pytest.raises(ValueError, match="no such model"):
        patient(lambda: (_ for _ in ()).throw(ValueError("no such model")), "Tinker connect", None)


def test_a_dead_service_ends_the_wait_with_a_message(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        never = threading.Event()
        with caplog.at_level(logging.WARNING), pytest.raises(ClawError, match="nothing answers at") as caught:
            patient(never.wait, "Tinker forward_backward", url, dead_s=patience._LOG_S)
        never.set()
    assert "train.service.url" in caught.value.fix
    assert "no result for" in caplog.text
