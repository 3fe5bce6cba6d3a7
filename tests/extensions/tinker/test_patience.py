"""A call to a service that does not come back."""

import logging
import socket
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.tinker import patience
from clawctl.extensions.tinker.fireworks import FireworksService
from clawctl.extensions.tinker.patience import patient
from clawctl.extensions.tinker.sdk import URL, Service
from tests.stub_http import StubHandler, StubServer, running


def test_a_call_that_returns_gives_its_result_and_its_error() -> None:
    assert patient(lambda: 3, "Tinker forward", URL) == 3
    with pytest.raises(ValueError, match="no such model"):
        patient(lambda: (_ for _ in ()).throw(ValueError("no such model")), "Tinker connect", URL)


def test_a_dead_service_ends_the_wait_with_a_message(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        never = threading.Event()
        with caplog.at_level(logging.WARNING), pytest.raises(ClawError, match="nothing answers at") as caught:
            patient(never.wait, "Tinker forward_backward", url, dead_s=patience._LOG_S)
        never.set()
    assert "train.service.url" in caught.value.fix
    assert "no result for" in caplog.text


class _Busy(StubHandler):
    def do_GET(self) -> None:
        self.answer({"detail": "too many requests"}, 429)


def test_a_service_that_answers_only_429_says_so_at_each_retry_and_ends_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def retries(url: str) -> None:  # as the SDKs do, in silence and for hours
        with httpx.Client() as client:
            while not done.wait(0.5) and client.get(url).status_code == 429:
                pass

    with running(StubServer(_Busy)) as server, caplog.at_level(logging.WARNING):
        with pytest.raises(ClawError, match="only 429") as caught:
            patient(lambda: retries(server.url), "Tinker forward", server.url, refused_s=1)
        done.set()
    assert "limit of your account" in caught.value.fix
    assert caplog.text.count("answers 429") >= 2
    assert "HTTP Request" not in caplog.text  # the level of the SDK's own log is as it was


class _Sdk(Service):
    """A service whose SDK never connects."""

    def load_sdk(self) -> tuple[Any, tuple[type[Exception], ...]]:
        def connect(base_url: str, api_key: str) -> Any:
            raise OSError(f"no connection to {base_url}")

        return SimpleNamespace(ServiceClient=connect), ()


class _Fireworks(FireworksService):
    """Fireworks' SDK, before its first request."""

    def connect(self) -> None:
        self.api.close()


@pytest.mark.parametrize("variable", [None, "http://127.0.0.1:9"])
def test_a_recipe_without_an_address_waits_at_the_address_of_the_sdk(variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TINKER_BASE_URL", "FIREWORKS_BASE_URL"):
        monkeypatch.delenv(name, raising=False) if variable is None else monkeypatch.setenv(name, variable)
    with pytest.raises(ClawError, match=f"no connection to {variable or URL}"):
        _Sdk(_recipe("tinker"))
    assert _Fireworks(_recipe("fireworks")).url == (variable or "https://api.fireworks.ai")


def _recipe(kind: str) -> Recipe:
    backend = {"kind": kind, "api_key": "fw_local"}
    train = {"backend": backend, "send_conversations": True, "lora": {"rank": 2, "alpha": 32.0}}
    return Recipe.model_validate({"model": {"path": "crafts"}, "train": train})
