"""What steers somebody's server: weights, adapters, pauses."""

import pytest

from clawctl.serve.backends import Unanswered
from clawctl.serve.backends.control import Control
from tests.stub_http import StubHandler, StubServer, running


class Hasty(StubHandler):
    """Closes a connection when the second request comes on it, as uvicorn does with one that idled for 5 s."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.answered = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.answered:
            self.close_connection = True
            return
        self.answered = True
        self.answer({})


def test_a_swap_does_not_meet_the_end_of_a_connection_that_idled() -> None:
    with running(StubServer(Hasty)) as server:
        control = Control(server.url, None)
        control.pause()
        control.reload("somewhere", 1)
        control.resume()
        control.close()


def test_a_server_that_is_gone_is_said_to_be_unanswering() -> None:
    with running(StubServer(Hasty)) as server:
        gone = Control(server.url, None)
    with pytest.raises(Unanswered, match="does not answer /resume"):
        gone.resume()
    gone.close()
