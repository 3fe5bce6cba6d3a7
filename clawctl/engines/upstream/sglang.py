"""Control calls to an SGLang server. Written from the source of SGLang 0.5.23. docs/engines.md lists what ran against it."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clawctl.engines.vllm.control import Control
from clawctl.errors import ClawError


class SglangControl(Control):
    """See `Control`. Names and fields: `srt/entrypoints/http_server.py` and `srt/managers/io_struct.py` of SGLang 0.5.23."""

    def __init__(self, url: str, key: str | None) -> None:
        super().__init__(url, key)
        self._adapters: set[str] = set()  # names that are adapters, not the model itself

    # ---- the server ------------------------------------------------------------------------------------------------------

    def takes_adapters(self) -> bool:
        """The route always exists, but it works only if the server was started with LoRA."""
        return self._ask_if_known("GET", "/server_info").get("enable_lora") is True and self.has("/load_lora_adapter")

    def takes_weights(self) -> bool:
        """If weights can change, only a stream shows which version sampled which token, and its logprobs must be complete."""
        # /pause_generation is not probed, because without a mode it ends every running request.
        return self._parses() and self.has("/update_weights_from_disk")

    def warnings(self) -> list[str]:
        if self._parses():
            return []
        return ["answers lack a logprob and are not trained; start SGLang with --tool-call-parser or --reasoning-parser"]

    def _parses(self) -> bool:
        """Whether SGLang parses answers. Without a parser, a stream has no chunk for a token without text (the end token), and its
        logprob is lost."""
        info = self._ask_if_known("GET", "/model_info")
        return bool(info.get("tool_call_parser") or info.get("reasoning_parser"))

    def score(self, model: str, ids: Sequence[int], first: int = 1) -> list[float]:
        """See `Control`. `input_token_logprobs` has (logprob, id, text) for each token of the prompt; the first logprob is null."""
        body: dict[str, Any] = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        if model in self._adapters:
            body["lora_path"] = model
        answer = self._ask("POST", "/generate", body)
        try:
            entries = answer["meta_info"]["input_token_logprobs"]
            if [entry[1] for entry in entries] != list(ids):
                raise ValueError("they belong to other ids")
            return [float(entry[0]) for entry in entries[first:]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ClawError(f"the engine returns no logprobs for given ids: {error!r}", "use SGLang 0.5.23 or newer") from error

    # ---- adapters --------------------------------------------------------------------------------------------------------

    def _load(self, name: str, folder: Path) -> None:
        self._ask("POST", "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        self._adapters.add(name)

    def unload_adapter(self, name: str) -> None:
        self._adapters.discard(name)
        self._ask("POST", "/unload_lora_adapter", {"lora_name": name})

    # ---- weights ---------------------------------------------------------------------------------------------------------

    def pause(self) -> float:
        began = time.monotonic()
        self._ask("POST", "/pause_generation", {"mode": "retract"})  # requests are kept, and the new weights recompute them
        return began

    def reload(self, path: str, version: int) -> None:
        self._ask("POST", "/update_weights_from_disk", {"model_path": path, "weight_version": str(version), "flush_cache": True})

    def resume(self) -> None:
        self._ask("POST", "/continue_generation", {})

    # ---- memory ----------------------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        raise ClawError("an SGLang upstream is not put to sleep by clawctl", "pause it instead")

    def wake(self) -> None:
        """No effect: an SGLang server is never put to sleep."""
