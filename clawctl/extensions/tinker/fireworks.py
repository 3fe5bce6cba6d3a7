"""Fireworks as a training service. Its SDK is a fork of Tinker's, with three differences in the source of fireworks-ai 1.2.28 and
1.2.30:

- A serverless session lists no models. The control plane knows whether the base model exists.
- A saved state is loaded into a new adapter, because the call that creates an adapter from a state would use the default alpha.
- There is no archive. `promote_session_checkpoint` turns a saved adapter into a model of the account, and `get_download_endpoint`
  returns signed URLs of its files.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.extensions.tinker.adapter import CONFIG, WEIGHTS
from clawctl.extensions.tinker.sdk import RemoteAdapter, Service, download

log = logging.getLogger("clawctl.train")

TRAINING = "/training/v1/serverless"  # path below the API's address
_MODEL = re.compile(r"accounts/(?P<account>[^/]+)/models/(?P<model>[^/]+)")
_READY_S = 600.0


class FireworksService(Service):
    """A `Service`. Each adapter has its own session, because a session creates only one adapter of a kind."""

    name = "Fireworks"
    poll_s = 2.0  # while a promoted model is copied

    def load_sdk(self) -> tuple[Any, tuple[type[Exception], ...]]:
        self._platform = import_module("fireworks")
        sdk = import_module("fireworks.training.sdk")
        return sdk, (sdk.TrainingError, self._platform.FireworksError, import_module("httpx").HTTPError, RuntimeError)

    def address(self) -> str:
        url = self.settings.url.rstrip("/").removesuffix(TRAINING) if self.settings.url is not None else None
        with self.calls("connect"):
            self.api: Any = self._platform.Fireworks(api_key=self.settings.api_key, base_url=url)
        return str(self.api.base_url).rstrip("/")

    def connect(self) -> None:
        named = _MODEL.fullmatch(self.base_model)
        if named is None:
            raise ClawError(
                f"{self.base_model} is not the name of a model at Fireworks",
                "set train.service.base_model: accounts/fireworks/models/NAME",
                2,
            )
        try:
            model = self.call("connect", lambda: self.api.models.get(named["model"], account_id=named["account"]))
        except ClawError as error:
            if not isinstance(error.__cause__, self._platform.NotFoundError):
                raise
            raise ClawError(
                f"Fireworks does not offer the base model {self.base_model}",
                "set train.service.base_model to a model that can be tuned; models get retired",
                2,
            ) from error
        self.context = model.training_context_length or model.context_length

    def open_session(self) -> None:
        if self.client is not None:
            self.call("close_session", self.client.close)
        make = self.sdk.ServiceClient
        self.client = self.call("create_session", lambda: make(base_url=self.url + TRAINING, api_key=self.api.api_key))

    def create(self, recipe: Recipe, **more: Any) -> RemoteAdapter:
        lora = recipe.train.lora
        assert lora is not None
        self.open_session()
        return super().create(recipe, alpha=int(lora.alpha), **more)

    def restore(self, state: str, with_optimizer: bool) -> RemoteAdapter:
        adapter = self.create(self.recipe)
        name = "load_state" + ("_with_optimizer" if with_optimizer else "")
        self.call(name, lambda: getattr(adapter.training, name)(state).result())
        return adapter

    def fetch(self, path: str) -> dict[str, bytes]:
        with self.calls("fetch the adapter"):
            session = self.client.training_session_name
            if session is None:
                raise ValueError("the session has no account")
        return self.promoted_files(session, path.rpartition("/")[2])

    def promoted_files(self, session: str, saved: str) -> dict[str, bytes]:
        """The files of the adapter that was saved as `saved`. A model of the account is created for the download and then
        deleted."""
        account = session.split("/")[1]
        with self.sdk.FireworksClient(self.api.api_key, self.url) as control:
            checkpoints = self.call("list_training_session_checkpoints", lambda: control.list_training_session_checkpoints(session))
            with self.calls("list_training_session_checkpoints"):
                checkpoint = _promotable(checkpoints, saved)
            promote = control.promote_session_checkpoint
            self.call("promote_session_checkpoint", lambda: promote(checkpoint, saved, self.base_model))
        try:
            return self.call("get_download_endpoint", lambda: self._promoted_files(account, saved))
        finally:
            self._delete(account, saved)

    def _promoted_files(self, account: str, saved: str) -> dict[str, bytes]:
        self._wait_until_ready(account, saved)
        return {name: download(url) for name in (CONFIG, WEIGHTS) if (url := self._url(account, saved, name))}

    def _wait_until_ready(self, account: str, model_id: str) -> None:
        deadline = time.monotonic() + _READY_S
        while (model := self.api.models.get(model_id, account_id=account)).state != "READY":
            if model.status is not None and model.status.code not in (None, "OK"):
                raise ValueError(f"the promoted model failed with {model.status.code}: {model.status.message}")
            if time.monotonic() > deadline:
                raise ValueError(f"the promoted model is {model.state} after {_READY_S:.0f} seconds")
            time.sleep(self.poll_s)

    def _url(self, account: str, model_id: str, name: str) -> str | None:
        """A signed URL of a file; None if the model lacks it. Each file gets a new URL, because a long download may outlive the
        others."""
        urls = self.api.models.get_download_endpoint(model_id, account_id=account).filename_to_signed_urls or {}
        return next((str(url) for full, url in urls.items() if full.rpartition("/")[2] == name), None)

    def _delete(self, account: str, model_id: str) -> None:
        try:
            self.call("delete", lambda: self.api.models.delete(model_id, account_id=account))
        except ClawError as error:
            log.warning("accounts/%s/models/%s stays at Fireworks: %s", account, model_id, error)


def _promotable(rows: Sequence[Mapping[str, Any]], saved: str) -> str:
    """The resource name of a saved checkpoint. The SDK ends each name with eight random digits, so comparing the end of a name is
    enough. Raises ValueError."""
    names = [str(row["name"]) for row in rows if str(row["name"]).endswith(saved) and row.get("promotable")]
    if not names:
        raise ValueError(f"{saved} is not among the checkpoints that can be promoted ({len(rows)} in this session)")
    return names[-1]
