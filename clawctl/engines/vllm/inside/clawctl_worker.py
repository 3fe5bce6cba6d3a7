"""Extends vLLM's workers at its plugin point `--worker-extension-cls`: they reload complete weights, including packed copies."""

from pathlib import Path
from typing import Any

import clawctl_base_rows  # type: ignore[import-not-found]  # from engines/patches/vllm, on vLLM's path
import clawctl_logprobs  # type: ignore[import-not-found]


class Reload:
    """Becomes a base class of the worker's class."""

    model_runner: Any

    def clawctl_reload(self, path: str) -> dict[str, str]:
        """Serve the weights in `path` from now on. If they cannot be read, returns {"error": …} and changes nothing, because an
        exception here would end the engine."""
        try:
            _read_through(path)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the files, the engine keeps its weights
            return {"error": f"{type(error).__name__}: {error}"}
        self.reload_weights(weights_path=path)  # type: ignore[attr-defined]
        self._repack_heads()
        return {}

    def _repack_heads(self) -> None:
        """Refresh the packed copy of the output layer's weights that a CPU uses. vLLM 0.32 does not refresh it if they are tied to
        the embedding, because nothing is loaded under the head's own name."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        if not current_platform.is_cpu():
            return
        for layer in self.model_runner.get_model().modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)


def _read_through(path: str) -> None:
    from safetensors import safe_open

    files = sorted(Path(path).glob("*.safetensors"))
    if Path(path).is_dir() and not files:
        raise FileNotFoundError(f"no safetensors in {path}")
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is not a mapping
                tensors.get_tensor(name)


# At import: workers are created after it, and no other clawctl code runs in them before.
clawctl_base_rows.zero_base_rows()
clawctl_logprobs.normalise_exactly()
