"""Settings of `model:`, the model that is served and trained."""

from pathlib import Path
from typing import Literal

from clawctl.config.section import Section

DEMO_MODEL = Path(__file__).parent.parent / "demo_model"
BUILT_IN = {
    "demo": DEMO_MODEL,
    "crafts": DEMO_MODEL.with_name("craft_model"),
    "pages": DEMO_MODEL.with_name("pages_model"),
    "screens": DEMO_MODEL.with_name("screens_model"),
    "wishes": DEMO_MODEL.with_name("wishes_model"),
}


class ModelConfig(Section):
    path: str = "demo"
    """A Hugging Face model directory or name, or one of the tiny models that are part of clawctl: `demo`, `crafts`, which
    solves some tasks of `toolcall`, `terminal` and `swe`, `pages`, which solves some tasks of `gui`, `screens`, which clicks on
    pictures of the page `spot` of `gui`, or `wishes`, which answers word problems in many ways."""
    name: str | None = None
    """Model name in client requests. Unset: the last part of `path`. Clients request a fixed version with `NAME@3`; `NAME` is the
    live one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the weights in the engine. `auto` uses the type in the model's files."""
