"""`model:`, what serves and learns."""

from pathlib import Path
from typing import Literal

from clawctl.config.section import Section

DEMO_MODEL = Path(__file__).parent.parent / "demo_model"


class ModelConfig(Section):
    path: str = "demo"
    """A Hugging Face model directory or name, or `demo` for the tiny model that clawctl ships."""
    name: str | None = None
    """The name clients ask for; by default the last part of `path`. `NAME@3` asks for version 3, whatever is live."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights in the engine; `auto` takes what the model's files have."""
