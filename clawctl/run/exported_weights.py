"""Writes one version's weights for other programs, loads them again, and compares log-probabilities."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.gguf import gguf_file
from clawctl.run.policies import PolicyId, check_policy, live_version, located, read_policy

Form = Literal["peft", "merged", "gguf"]
_CLOSE = {"peft": 1e-4, "merged": 1e-4, "gguf": 0.1}  # largest difference of a log-probability, in nats; GGUF rounds to 16 bits
_TEXTS = (
    "The weather today is fine, and 2 + 3 = 5.",
    "Please write one short sentence about the sea, and another one about mountains in winter.",
    'def add(a, b):\n    return a + b\n\n{"name": "add", "arguments": {"a": 1, "b": 2}}',
)


def export_weights(run: RunDir, recipe: Recipe, version: str | None, form: Form, target: Path, ollama: bool) -> str:
    """Write a version, by default the live one, to the folder `target`. Returns a line for the user. Raises ClawError, also if the
    written weights compute something else."""
    policy_run, number = _chosen(run, version)
    check_policy(policy_run, number)
    kind, source, base = read_policy(policy_run, number).kind, policy_run.version_folder(number), recipe.model_path
    if form == "peft" and kind != "adapter":
        raise ClawError(f"version {number} is no adapter", "export it with --adapter merged or gguf", 2)
    if ollama and form != "gguf":
        raise ClawError("--ollama needs a GGUF file", "export with --adapter gguf --ollama", 2)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ClawError(f"{target} exists already", "name a new folder", 2)
    model, tokenizer = _load(source if kind == "full" else Path(base)), _tokenizer(base)
    if kind == "adapter":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(source)).eval()
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in _TEXTS]
    expected = _logprobs(model, ids)
    target.mkdir(parents=True, exist_ok=True)
    write: dict[Form, Callable[[], Any]] = {
        "peft": lambda: _write_adapter(source, target, base),
        "merged": lambda: _write_merged(model, tokenizer, target),
        "gguf": lambda: _write_gguf(model, tokenizer, target, recipe, ollama),
    }
    again, tokenizer_again = write[form]()
    texts = [tokenizer_again(text, add_special_tokens=False)["input_ids"] for text in _TEXTS]
    difference = max(float(np.abs(before - after).max()) for before, after in zip(expected, _logprobs(again, ids), strict=True))
    if texts != ids:
        cure = "do not use it; export with --adapter merged, and convert that with llama.cpp's convert_hf_to_gguf.py"
        raise ClawError(f"{target} has a tokenizer that splits text in another way", cure)
    if not difference <= _CLOSE[form]:
        problem = f"{target} computes something else: a log-probability differs by {difference:.2g}"
        raise ClawError(problem, "do not use it, and report this as a bug")
    version_name = PolicyId(policy_run.policy, number)
    return f"version {version_name} is in {target} ({form}); loaded again, a log-probability differs by {difference:.2g} at most"


def _chosen(run: RunDir, version: str | None) -> tuple[RunDir, int]:
    try:
        policy_run, number = (run, live_version(run)) if version is None else located(run, PolicyId.parse(version))
    except ValueError as error:
        raise ClawError(str(error), "name a version such as 3 or anna@3", 2) from error
    if number is None:
        raise ClawError(f"{run.root} has no live version", "name one with --version", 2)
    return policy_run, number


def _load(folder: Path) -> Any:
    """A causal model in float32, in which nothing is rounded."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, trust_remote_code=False).eval()


def _tokenizer(folder: str, **settings: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **settings)


def _logprobs(model: Any, ids: list[list[int]]) -> list[np.ndarray]:
    """The log-probability of each token after the first, for each text."""
    import torch

    logprobs = []
    with torch.no_grad():
        for tokens in ids:
            ids_BT = torch.tensor([tokens])
            logits = model(input_ids=ids_BT, use_cache=False).logits[0, :-1].float()
            logprobs.append(logits.log_softmax(-1).gather(1, ids_BT[0, 1:, None])[:, 0].numpy())
    return logprobs


def _write_adapter(source: Path, target: Path, base: str) -> tuple[Any, Any]:
    from peft import PeftModel

    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copyfile(source / name, target / name)
    return PeftModel.from_pretrained(_load(Path(base)), str(target)).eval(), _tokenizer(base)


def _write_merged(model: Any, tokenizer: Any, target: Path) -> tuple[Any, Any]:
    """In float32: rounding would change log-probabilities by more than 1e-4."""
    merged = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    merged.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return _load(target), _tokenizer(str(target))


def _write_gguf(model: Any, tokenizer: Any, target: Path, recipe: Recipe, ollama: bool) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    from clawctl.run.gguf_writing import write_gguf, write_modelfile

    merged = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    file = target / f"{recipe.model_name.replace('/', '-')}.gguf"
    with tempfile.TemporaryDirectory(dir=target) as folder:
        draft = Path(folder) / file.name
        write_gguf(draft, merged, tokenizer, gguf_file(recipe.model.path))
        draft.rename(file)
    if ollama:
        write_modelfile(target / "Modelfile", file.name, tokenizer, recipe)
    settings: Any = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    if getattr(model.config, "head_dim", None):  # transformers does not read a head's size from a GGUF file
        settings["head_dim"] = model.config.head_dim
    again = AutoModelForCausalLM.from_pretrained(str(target), gguf_file=file.name, **settings).eval()
    return again, _tokenizer(str(target), gguf_file=file.name)
