"""Settings of the chat template that a client may set (`chat_template_kwargs`): only the template's own switches.

The renderer accepts any keyword argument, such as another template to execute, other messages, documents or files. A client's
settings are therefore checked by name and value when a request is read. They are also checked against the variables of the model's
template (`clawctl.serve.switches`), if it is known.
"""

from pathlib import Path
from typing import Any, Final

from clawctl.engines.requests import Refusal
from clawctl.serve.dialects.fields import Object, flag, object_or_none

FIELD: Final = "chat_template_kwargs"
_MAX_SETTINGS, _LONGEST = 16, 256  # settings per request; characters of a name or of a text value
# Clients send them to every model; harmless if the template does not read them.
_USUAL: Final = frozenset(("enable_thinking", "thinking", "reasoning_effort"))
_RENDERERS: Final = frozenset((Path(__file__).parent / "renderers.txt").read_text("utf-8").split())


def template_settings(body: Object, *thinking: bool | None) -> Object:
    """A body's `chat_template_kwargs`, with `enable_thinking`. Some clients send `enable_thinking` as a separate field, and each
    API also has its own field for it: `thinking` are the values of those fields. The first value that is not None counts. Raises
    Refusal."""
    settings = check_settings(object_or_none(body, FIELD))
    enabled = next((switch for switch in (flag(body, "enable_thinking"), *thinking) if switch is not None), None)
    return settings if enabled is None else {"enable_thinking": enabled, **settings}


def check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings`, if all of them can be switches of a template. Raises a Refusal that names the first one that cannot."""
    if len(settings) > _MAX_SETTINGS:
        raise Refusal(400, f"'{FIELD}' may contain at most {_MAX_SETTINGS} settings", FIELD)
    for name, value in settings.items():
        shown = name[:80]
        if is_renderers(name) or not name.isidentifier() or len(name) > _LONGEST:
            raise Refusal(400, f"'{FIELD}.{shown}' cannot be set in a request: only switches of the chat template can", FIELD)
        if value is not None and not isinstance(value, bool | int | float | str):
            raise Refusal(400, f"'{FIELD}.{shown}' must be true, false, a number or a string", FIELD)
        if isinstance(value, str) and len(value) > _LONGEST:
            raise Refusal(400, f"'{FIELD}.{shown}' may have at most {_LONGEST} characters", FIELD)
    return settings


def check_known(settings: dict[str, Any], switches: frozenset[str] | None) -> None:
    """Raises Refusal for a setting that the model's template does not read. `known`: the template's `switches`, or None if they are
    unknown."""
    for name in settings if switches is not None else ():
        if switches is not None and name not in switches and name not in _USUAL:
            has = ", ".join(sorted(switches)) or "none"
            raise Refusal(400, f"'{FIELD}.{name}' is not a switch of this model's chat template; its switches: {has}", FIELD)


def is_renderers(name: str) -> bool:
    return name in _RENDERERS or name.startswith("_") or name.endswith("_token")
