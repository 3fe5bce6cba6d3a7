"""Downloading an adapter from Fireworks, against a control plane that answers with the SDK's types."""

from collections.abc import Iterator
from typing import Any

import pytest

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.tinker.adapter import CONFIG, WEIGHTS, members_of
from clawctl.extensions.tinker.backend import check
from clawctl.extensions.tinker.fireworks import FireworksService
from scripts.asgi import serving
from scripts.fireworks_gateway import ACCOUNT, BASE, Gateway
from tests.extensions.tinker.test_adapter import archive

SAVED, SESSION = "clawctl-1-0a1b2c3d", f"accounts/{ACCOUNT}/trainingSessions/ts-1"


def recipe(url: str, base_model: str = BASE, **train: Any) -> Recipe:
    backend = {"kind": "fireworks", "url": url, "api_key": "fw_local", "base_model": base_model}
    settings = {"backend": backend, "send_conversations": True, "lora": {"rank": 2, "alpha": 32.0}, **train}
    return Recipe.model_validate({"model": {"path": "crafts"}, "train": settings})


@pytest.fixture
def gateway() -> Iterator[tuple[Gateway, str]]:
    there = Gateway()
    there.saved[SAVED] = members_of(archive())
    with serving(there.app) as url:
        yield there, url


@pytest.fixture
def service(gateway: tuple[Gateway, str]) -> Iterator[FireworksService]:
    connected = FireworksService(recipe(gateway[1]))
    yield connected
    connected.api.close()


def test_a_saved_adapter_is_promoted_downloaded_and_deleted(gateway: tuple[Gateway, str], service: FireworksService) -> None:
    assert service.promoted_files(SESSION, SAVED) == members_of(archive())
    assert gateway[0].promoted == {}


def test_the_download_waits_until_the_model_is_copied(gateway: tuple[Gateway, str], service: FireworksService) -> None:
    gateway[0].copying, service.poll_s = 3, 0.01
    assert service.promoted_files(SESSION, SAVED)[CONFIG] == members_of(archive())[CONFIG]


def test_a_model_that_lacks_a_file_is_refused(gateway: tuple[Gateway, str], service: FireworksService) -> None:
    from clawctl.config import LoraConfig
    from clawctl.extensions.tinker.adapter import files_of

    del gateway[0].saved[SAVED][WEIGHTS]
    with pytest.raises(ClawError, match=f"lacks {WEIGHTS}"):
        files_of(service.promoted_files(SESSION, SAVED), LoraConfig(rank=2), "crafts")


def test_an_expired_url_ends_the_download_and_the_model_is_deleted(gateway: tuple[Gateway, str], service: FireworksService) -> None:
    gateway[0].valid_s = -1.0
    with pytest.raises(ClawError, match="get_download_endpoint: HTTP Error 403"):
        service.promoted_files(SESSION, SAVED)
    assert gateway[0].promoted == {}


def test_a_refused_promotion_has_a_reason(gateway: tuple[Gateway, str], service: FireworksService) -> None:
    gateway[0].refusal = "the quota of models is used up"
    with pytest.raises(ClawError, match=r"promote_session_checkpoint: (?s:.*)the quota of models is used up"):
        service.promoted_files(SESSION, SAVED)


def test_a_checkpoint_that_is_not_listed_is_refused(gateway: tuple[Gateway, str], service: FireworksService) -> None:
    gateway[0].saved.clear()
    with pytest.raises(ClawError, match=f"{SAVED} is not among the checkpoints"):
        service.promoted_files(SESSION, SAVED)


def test_an_unknown_base_model_is_refused_before_a_session_is_opened(gateway: tuple[Gateway, str]) -> None:
    with pytest.raises(ClawError, match="does not offer the base model accounts/fireworks/models/retired"):
        FireworksService(recipe(gateway[1], "accounts/fireworks/models/retired"))
    with pytest.raises(ClawError, match="Qwen/Qwen3-8B is not the name of a model at Fireworks"):
        FireworksService(recipe(gateway[1], "Qwen/Qwen3-8B"))


def test_the_base_model_gives_the_context_length(service: FireworksService) -> None:
    assert service.context == 4096


@pytest.mark.parametrize(
    ("changes", "problem"), [({"lora": {"alpha": 16.5}}, "whole number"), ({"method": "opd", "teacher": "base"}, "teacher base")]
)
def test_settings_that_fireworks_cannot_train_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ClawError, match=f"--backend fireworks cannot train .*{problem}"):
        check(recipe("https://gpu.example", **changes))
