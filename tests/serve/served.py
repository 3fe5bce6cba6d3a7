"""A random tiny Qwen3 with a byte-level tokenizer, and real servers on it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import torch
import yaml
from openai import OpenAI
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from clawctl.run.checksums import read_sealed
from clawctl.run.directory import RunDir, open_run
from tests import forked
from tests.waiting import until

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}{%- endif %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}{{ call.function | tojson }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
PATIENCE_S = 120  # a busy machine is no failure


def build_model(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["hello how are you today thanks a lot please help me with my homework"] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=4096, tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id, bos_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = fast.eos_token_id
    model.save_pretrained(folder)
    return folder


def perturbed(model_path: Path, seed: int, size: float = 0.05) -> Any:
    """The model with every weight moved: another policy."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=noise)
    return model


@torch.no_grad()
def logprobs_of(model: Any, prompt_ids: list[int], completion_ids: list[int], temperature: float = 1.0) -> list[float]:
    """By a plain forward pass over prompt and completion together."""
    ids = torch.tensor([prompt_ids + completion_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt_ids) :, None])[:, 0].tolist()


def recipe_data(model_path: Path, sections: dict[str, Any] | None = None, **serve: Any) -> dict[str, Any]:
    settings = {"port": 0, "threads": 1, "kv_cache_tokens": 8192, "max_batch_tokens": 256, "api_key": "key", **serve}
    return {"model": {"path": str(model_path), "name": "tiny", "dtype": "float32"}, "serve": settings, **(sections or {})}


class Server:
    """A `clawctl serve` process."""

    def __init__(
        self,
        run: Path,
        model_path: Path,
        intercept: bool = True,
        arguments: Sequence[str] = (),
        patience_s: float = PATIENCE_S,
        forks: bool = True,
        **serve: Any,
    ) -> None:
        """`forks`: from a process that has imported its modules, and PyTorch as well."""
        self.run: RunDir = open_run(run)
        self.log = run.parent / f"{run.name}.log"
        self.process = self.starting(run, model_path, intercept, arguments, forks, **serve)
        announced = run / "serve.json"
        try:
            until(lambda: self._has_announced() or self.process.poll() is not None, patience_s)
            assert self._has_announced(), self.log.read_text()
        except AssertionError:
            self.process.kill()
            raise
        self.url = orjson.loads(announced.read_bytes())["url"]
        self.client = OpenAI(base_url=self.url, api_key="key", max_retries=0)

    def _has_announced(self) -> bool:
        """Whether this process did. The file of an earlier server may still exist."""
        path = self.run.root / "serve.json"
        return path.exists() and orjson.loads(path.read_bytes())["pid"] == self.process.pid

    @staticmethod
    def starting(
        run: Path, model_path: Path, intercept: bool = True, arguments: Sequence[str] = (), forks: bool = True, **serve: Any
    ) -> "forked.Command | subprocess.Popen[bytes]":
        """The process, with its output in RUN.log next to the run."""
        recipe, log = (run.parent / f"{run.name}.{ending}" for ending in ("yaml", "log"))
        recipe.write_text(yaml.safe_dump(recipe_data(model_path, **serve)))
        command = ["serve", "--run", str(run), "--recipe", str(recipe), *arguments, *["--intercept"] * intercept]
        log.write_bytes(b"")
        if forks:
            return forked.Command(command, log, HF_HUB_OFFLINE="1")
        with log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "clawctl", *command], stderr=output, stdout=output, env={**os.environ, "HF_HUB_OFFLINE": "1"}
            )

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(self.url.removesuffix("/v1") + "/health", timeout=60.0).json()
        return answer

    def captured(self) -> list[dict[str, Any]]:
        lines = [line for path in sorted(self.run.captures.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
        return [read_sealed(line) for line in lines if line]

    def say(self, text: str, **settings: Any) -> Any:
        arguments = {"model": "tiny", "max_tokens": 16, **settings}
        return self.client.chat.completions.create(messages=[{"role": "user", "content": text}], **arguments)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)
