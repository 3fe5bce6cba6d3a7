"""Tools: the tool choice, and conversions of tools that are not functions to functions for the model and back.

Anthropic's bash, text editor and memory: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/overview. A newer version of
one of these is presented as the newest known version of its family. OpenAI's shells and patches:
https://platform.openai.com/docs/guides/tools-shell and https://platform.openai.com/docs/guides/tools-apply-patch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from clawctl.engines.requests import Refusal
from clawctl.serve.dialects.fields import Object, json_object

CUSTOM_INPUT: Final = "input"  # a custom tool takes free text; its function takes an object with this single string
_TEXT: Final = {"type": "string"}
_WHOLE: Final = {"type": "integer"}
_PATH: Final = {"type": "string", "description": "absolute path of a file or folder"}
_LINES: Final = {"type": "array", "items": _WHOLE, "description": "of `view`: the first and the last line, from 1; -1 is the end"}
_EDITS: Final = {
    "path": _PATH,
    "view_range": _LINES,
    "file_text": {"type": "string", "description": "of `create`: the content of the file"},
    "old_str": {"type": "string", "description": "of `str_replace`: the text to replace, which must occur exactly once"},
    "new_str": {"type": "string", "description": "of `str_replace`: the text to put there"},
    "insert_line": {"type": "integer", "description": "of `insert`: the line after which to insert; 0 is the beginning"},
}


def _function(name: str, description: str, properties: Mapping[str, Any], *required: str) -> Object:
    parameters = {"type": "object", "properties": dict(properties), "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


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
    text: Object = dict(_TEXT)
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        text["description"] = f"follows this {form.get('syntax', '')} grammar:\n{form['definition']}"
    return _function(name, str(description or ""), {CUSTOM_INPUT: text}, CUSTOM_INPUT)


def free_text(arguments: str) -> str:
    """The input of a custom tool. Arguments in an unexpected form are returned unchanged."""
    text = json_object(arguments).get(CUSTOM_INPUT)
    return text if isinstance(text, str) else arguments


# ---- Anthropic's ---------------------------------------------------------------------------------------------------------


def client_tool(tool: Object) -> Object | None:
    """The function for one of Anthropic's client-side tools; None for any other tool."""
    kind = str(tool.get("type"))
    family, _, version = kind.rpartition("_")
    if family not in _FAMILIES or not version.isdigit():
        return None
    name = tool.get("name")
    return _FAMILIES[family](name if isinstance(name, str) and name else _NAMES[family], version, tool)


def _bash(name: str, _version: str, _tool: Object) -> Object:
    about = "Run a command in a bash session that lasts: its folder, variables and processes stay from call to call."
    command = {"type": "string", "description": "the command to run; may be left out with `restart`"}
    restart = {"type": "boolean", "description": "true: start the session anew"}
    return _function(name, about, {"command": command, "restart": restart})


def _text_editor(name: str, version: str, tool: Object) -> Object:
    commands, inserted = ["view", "create", "str_replace", "insert"], "insert_text" if version >= "20250728" else "new_str"
    if version < "20250429":
        commands.append("undo_edit")
    about = "View, create and edit text files."
    if isinstance(tool.get("max_characters"), int):
        about += f" `view` shows at most {tool['max_characters']} characters."
    properties = {"command": {"type": "string", "enum": commands}, **_EDITS}
    if inserted == "insert_text":
        properties[inserted] = {"type": "string", "description": "of `insert`: the text to insert"}
    else:
        properties["new_str"] = {"type": "string", "description": "of `str_replace` and `insert`: the text to put there"}
    return _function(name, about, properties, "command", "path")


def _memory(name: str, _version: str, _tool: Object) -> Object:
    about = "Read and write files below /memories, which last longer than this conversation. View the folder before you begin."
    properties = {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        **_EDITS,
        "insert_text": {"type": "string", "description": "of `insert`: the text to insert"},
        "old_path": {"type": "string", "description": "of `rename`: the path as it is"},
        "new_path": {"type": "string", "description": "of `rename`: the path to be"},
    }
    return _function(name, about, properties, "command")


_FAMILIES: Final = {"bash": _bash, "text_editor": _text_editor, "memory": _memory}
_NAMES: Final = {"bash": "bash", "text_editor": "str_replace_based_edit_tool", "memory": "memory"}

# ---- OpenAI's --------------------------------------------------------------------------------------------------------------

LOCAL: Final = ("local_shell", "shell", "apply_patch")  # kinds of Responses tools that the client runs
ITEM_PREFIXES: Final = {"function": "fc", "custom": "ctc", "local_shell": "lsh", "shell": "shc", "apply_patch": "apc"}


def local_tool(tool: Object, name: str) -> Object | None:
    """The function for one of the client-side Responses tools; None for any other tool, and for a shell in OpenAI's containers."""
    kind, environment = tool.get("type"), tool.get("environment")
    if kind == "local_shell":
        properties = {
            "command": {"type": "array", "items": _TEXT, "description": 'a program and its arguments: ["bash", "-lc", "ls"]'},
            "working_directory": _TEXT,
            "timeout_ms": _WHOLE,
            "env": {"type": "object", "description": "environment variables to add"},
        }
        return _function(name, "Run a program on the user's machine.", properties, "command")
    if kind == "shell" and (not isinstance(environment, dict) or environment.get("type", "local") == "local"):
        about = "Run shell commands on the user's machine. Commands of one call run side by side." + _skills(environment)
        properties = {"commands": {"type": "array", "items": _TEXT}, "timeout_ms": _WHOLE, "max_output_length": _WHOLE}
        return _function(name, about, properties, "commands")
    if kind == "apply_patch":
        diff = {"type": "string", "description": "lines that begin with +, - or a space, behind @@ lines; not of `delete_file`"}
        kinds = {"type": "string", "enum": ["create_file", "update_file", "delete_file"]}
        return _function(name, "Create, change or delete one file.", {"type": kinds, "path": _TEXT, "diff": diff}, "type", "path")
    return None


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
