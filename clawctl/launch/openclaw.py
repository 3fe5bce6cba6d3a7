"""OpenClaw's configuration for a run, in the format of the installed version (`clawctl connect openclaw`)."""

from pathlib import Path
from typing import Any

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.shipped import shipped

WAYS = ("plugin", "responses", "plain")
_PLUGIN_SINCE = (2026, 6)  # buildReplayPolicy supports appendOnlyRuntimeContext
_AFFINITY_SINCE = (2026, 9)  # earlier versions refuse a configuration with sendSessionAffinityHeaders
_LONGEST_ANSWER = 8192


def addition(
    version: tuple[int, ...], way: str | None, recipe: Recipe, context: int, existing: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """What is added to the `existing` configuration, with places for URL, key and model. Raises ClawError (an unsuitable `way`)."""
    if way not in (None, *WAYS):
        raise ClawError(f"unknown way {way!r}", "choose plugin, responses or plain", 2)
    chosen = way or ("plugin" if version >= _PLUGIN_SINCE else "plain")
    if chosen == "plugin" and version < _PLUGIN_SINCE:
        raise ClawError(
            f"OpenClaw {'.'.join(map(str, version))} is too old for the plugin", "update OpenClaw, or use --way plain", 2
        )
    if "allow" in existing.get("plugins", {}):
        notes.append("plugins.allow is set, so OpenClaw hides the tools of all other plugins; add 'clawctl' to it")
    notes.append(f"way: {chosen}")
    return fragment(chosen, version, context, thinking_of(recipe))


def plugin_folder() -> Path:
    """Folder of the provider plugin, in a checkout or in an installation. Raises ClawError."""
    folder = shipped("integrations") / "openclaw"
    if (folder / "openclaw.plugin.json").is_file():
        return folder
    raise ClawError("the OpenClaw plugin is not installed", "use --way plain, or reinstall clawctl")


def thinking_of(recipe: Recipe) -> bool:
    """Whether the model's chat template can switch reasoning on and off, as Qwen's do."""
    folder = Path(recipe.model_path)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (folder / name).is_file() and "enable_thinking" in (folder / name).read_text(errors="replace"):
            return True
    return False


def fragment(way: str, version: tuple[int, ...], context: int, thinking: bool) -> dict[str, Any]:
    """The part that is added to the configuration, with places for URL, key and model."""
    compat: dict[str, Any] = {"supportsPromptCacheKey": True}
    if way == "plain" and version >= _AFFINITY_SINCE:
        compat["sendSessionAffinityHeaders"] = True
    if thinking and way != "responses":
        compat["thinkingFormat"] = "qwen-chat-template"
    entry = {
        "id": "{model}",
        "name": "{model}",
        "reasoning": thinking,  # if false, OpenClaw removes the model's reasoning from the history
        "input": ["text"],
        "contextWindow": context,
        "maxTokens": min(_LONGEST_ANSWER, context // 4),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "compat": compat,
    }
    provider = "openai" if way == "responses" else "clawctl"
    api = "openai-responses" if way == "responses" else "openai-completions"
    config: dict[str, Any] = {
        "agents": {"defaults": {"model": {"primary": f"{provider}/{{model}}"}}},
        "models": {
            "mode": "merge",
            "providers": {provider: {"baseUrl": "{url}", "apiKey": "{key}", "api": api, "models": [entry]}},
        },
    }
    if way == "plugin":
        allowed = {"enabled": True, "hooks": {"allowConversationAccess": True}}
        config["plugins"] = {"load": {"paths": [str(plugin_folder())]}, "entries": {"clawctl": allowed}}
    return config
