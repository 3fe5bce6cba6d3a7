"""Tools: the tool choice, and conversions of tools that are not functions to functions for the model and back.

Anthropic's bash, text editor and memory: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/overview. A newer version of
one of these is presented as the newest known version of its family. OpenAI's shells and patches:
https://platform.openai.com/docs/guides/tools-shell and https://platform.openai.com/docs/guides/tools-apply-patch.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from clawctl.engines.requests import Refusal
from clawctl.serve.dialects.fields import Object, json_object

CUSTOM_INPUT: Final = "input"  # a custom tool takes free text; its function takes an object with this single string
_FUNCTIONS: Final = yaml.safe_load((Path(__file__).parent / "functions.yaml").read_text("utf-8"))
_NAMES: Final = {"bash": "bash", "text_editor": "str_replace_based_edit_tool", "memory": "memory"}  # Anthropic's, by family


def _function(name: str, kind: str, more: str = "") -> Object:
    """The function of this kind in `functions.yaml`, with `more` to its description."""
    row = deepcopy(_FUNCTIONS[kind])
    parameters = {"type": "object", "properties": row["properties"], "required": row.get("required", [])}
    return {"type": "function", "function": {"name": name, "description": row["description"] + more, "parameters": parameters}}


# ---- tool_choice ---------------------------------------------------------------------------------------------------------


def check_callable(choice: Any, tools: Sequence[Object]) -> Any:
    """Returns `choice`. Raises Refusal if it forces a call but no tool can be called."""
    if choice == "required" and all(tool_name(tool) is None for tool in tools):
        problem = "'tool_choice' forces a call, but no tool in 'tools' can be called: offer a function"
        raise Refusal(400, problem, "tool_choice")
    return choice


def forced_choice(name: str, tools: Sequence[Object]) -> Object:
    """The tool choice in chat form that forces a call of this tool. Raises Refusal if the tool was not offered."""
    if any(tool.get("name") == name and tool_name(tool) is None for tool in tools):
        problem = f"'tool_choice' forces {name[:80]!r}, which only its vendor's servers can run: offer your own tool"
        raise Refusal(400, problem, "tool_choice")
    if name not in map(tool_name, tools):
        raise Refusal(400, f"'tool_choice' names {name[:80]!r}, which is not among 'tools'", "tool_choice")
    return {"type": "function", "function": {"name": name}}


def tool_name(tool: Object) -> Any:
    for kind in ("function", "custom"):
        if isinstance(tool.get(kind), dict):
            return tool[kind].get("name")
    return None


# ---- custom tools ---------------------------------------------------------------------------------------------------------


def custom_function(name: str, description: Any, form: Any) -> Object:
    """The function for a tool that takes free text. `form`: {"type": "grammar", "syntax", "definition"}, or None."""
    text: Object = {"type": "string"}
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        text["description"] = f"follows this {form.get('syntax', '')} grammar:\n{form['definition']}"
    parameters = {"type": "object", "properties": {CUSTOM_INPUT: text}, "required": [CUSTOM_INPUT]}
    return {"type": "function", "function": {"name": name, "description": str(description or ""), "parameters": parameters}}


def free_text(arguments: str) -> str:
    """The input of a custom tool. Arguments in an unexpected form are returned unchanged."""
    text = json_object(arguments).get(CUSTOM_INPUT)
    return text if isinstance(text, str) else arguments


# ---- Anthropic's ---------------------------------------------------------------------------------------------------------


def client_tool(tool: Object) -> Object | None:
    """The function for one of Anthropic's client-side tools; None for any other tool."""
    kind = str(tool.get("type"))
    family, _, version = kind.rpartition("_")
    if family not in _NAMES or not version.isdigit():
        return None
    given = tool.get("name")
    name = given if isinstance(given, str) and given else _NAMES[family]
    if family != "text_editor":
        return _function(name, family)
    longest = tool.get("max_characters")
    shown = f" `view` shows at most {longest} characters." if isinstance(longest, int) else ""
    function = _function(name, family if version >= "20250728" else "text_editor_before", shown)
    if version < "20250429":
        function["function"]["parameters"]["properties"]["command"]["enum"].append("undo_edit")
    return function


# ---- OpenAI's --------------------------------------------------------------------------------------------------------------

LOCAL: Final = ("local_shell", "shell", "apply_patch")  # kinds of Responses tools that the client runs
ITEM_PREFIXES: Final = {"function": "fc", "custom": "ctc", "local_shell": "lsh", "shell": "shc", "apply_patch": "apc"}


def local_tool(tool: Object, name: str) -> Object | None:
    """The function for one of the client-side Responses tools; None for any other tool, and for a shell in OpenAI's containers."""
    kind, environment = tool.get("type"), tool.get("environment")
    if kind == "shell" and (not isinstance(environment, dict) or environment.get("type", "local") == "local"):
        return _function(name, kind, _skills(environment))
    return _function(name, kind) if kind in ("local_shell", "apply_patch") else None


def _skills(environment: Any) -> str:
    skills = environment.get("skills") if isinstance(environment, dict) else None
    named = [skill for skill in skills if isinstance(skill, dict)] if isinstance(skills, list) else []
    lines = [f"\n- {skill.get('name')} ({skill.get('path')}): {skill.get('description')}" for skill in named]
    return " Skills are described in these folders:" + "".join(lines) if lines else ""


def call_item(kind: str, arguments: str) -> Object:
    """The fields of an item of this kind for a call. Arguments that do not fit are converted as far as possible."""
    given = json_object(arguments)
    if kind == "local_shell":
        command = given.get("command")
        command = ["bash", "-lc", command] if isinstance(command, str) else command
        more = {key: given[key] for key in ("timeout_ms", "working_directory") if given.get(key) is not None}
        env = given.get("env") if isinstance(given.get("env"), dict) else {}
        return {"action": {"type": "exec", "command": _texts(command), "env": env, **more}}
    if kind == "shell":
        commands = given.get("commands", given.get("command"))
        limits = {key: given.get(key) if isinstance(given.get(key), int) else None for key in ("timeout_ms", "max_output_length")}
        return {
            "action": {"commands": _texts([commands] if isinstance(commands, str) else commands), **limits},
            "environment": None,
        }
    operation = given.get("type") if given.get("type") in ("create_file", "update_file", "delete_file") else "update_file"
    diff = {} if operation == "delete_file" else {"diff": str(given.get("diff", "" if given else arguments))}
    return {"operation": {"type": operation, "path": str(given.get("path", "")), **diff}}


def call_arguments(item: Object) -> Object:
    """The arguments of a call that a client sends back as an item: the inverse of `call_item`."""
    action = item.get("operation") if item.get("type") == "apply_patch_call" else item.get("action")
    if not isinstance(action, dict):
        return {}
    hidden = ("type",) if item.get("type") == "local_shell_call" else ()
    return {key: value for key, value in action.items() if key not in hidden and value is not None and value != {}}


def output_text(item: Object) -> Any:
    """A tool's output as the model reads it. Outputs of other tools are returned unchanged."""
    output = item.get("output")
    if item.get("type") == "apply_patch_call_output":
        return "\n".join(filter(None, [str(item.get("status", "completed")), output if isinstance(output, str) else ""]))
    if item.get("type") != "shell_call_output" or not isinstance(output, list):
        return output
    return "\n".join(_ran(result) for result in output if isinstance(result, dict))


def _ran(output: Object) -> str:
    parts, outcome = [str(output.get("stdout") or "")], output.get("outcome")
    if output.get("stderr"):
        parts.append(f"[stderr]\n{output['stderr']}")
    if isinstance(outcome, dict):
        parts.append("[timed out]" if outcome.get("type") == "timeout" else f"[exit code {outcome.get('exit_code')}]")
    return "\n".join(filter(None, parts))


def _texts(value: Any) -> list[str]:
    return [str(element) for element in value] if isinstance(value, list) else []
