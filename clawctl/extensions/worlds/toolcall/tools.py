"""The schemas of tools for the model (`tools.json`: a list of functions), and their execution as Python in the sandbox."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import Ran, Sandbox
from clawctl.extensions.worlds.toolcall.calls import json_schema, plain_name

_CURE = 'write a list like [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {…}}}}]'


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


CALCULATOR = _tool("calculator", "Compute an arithmetic expression, such as 12 * (3 + 4).", "expression")
PYTHON = _tool("python", "Run a Python program. You see what it prints.", "code")


def read_tools(path: Path) -> list[dict[str, Any]]:
    """The schemas in a `tools.json`. Raises ClawError (exit code 2), which names the invalid tool."""
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ClawError(f"{path} cannot be read as tools: {error}", _CURE, 2) from error
    if not isinstance(tools, list) or not tools:
        raise ClawError(f"{path} is not a list of tools", _CURE, 2)
    return [checked(tool, f"tool {number} of {path}") for number, tool in enumerate(tools, 1)]


def checked(tool: Any, what: str) -> dict[str, Any]:
    """A tool in the format of chat completions. The inner mapping alone is also accepted. Raises ClawError (exit code 2)."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ClawError(f"{what} is not a function with a name", _CURE, 2)
    parameters = function.get("parameters", {"type": "object", "properties": {}})
    parameters = json_schema(parameters)
    good = isinstance(parameters, dict) and parameters.get("type", "object") == "object"
    if not good or not all(isinstance(schema, dict) for schema in parameters.get("properties", {}).values()):
        raise ClawError(f"{what} ({function['name']}) has parameters that are not a JSON schema of an object", _CURE, 2)
    return {"type": "function", "function": {**function, "name": plain_name(function["name"]), "parameters": parameters}}


async def use(sandbox: Sandbox, call: Mapping[str, Any], seconds: float, code: Path | None = None) -> str:
    """Run a tool and return its answer. `code` is a Python file that defines custom tools. Raises SandboxOver, SandboxFailed."""
    name, arguments = name_and_arguments(call)
    if arguments is None:
        return "error: the arguments are no JSON object"
    if name == "calculator":
        problem = problem_of(str(arguments.get("expression", "")))
        if problem is not None:
            return f"error: {problem}"
        return _output(await sandbox.run([sandbox.kind.python(), "-I", "-S", "-c", f"print({arguments['expression']})"], seconds))
    if name == "python":
        return _output(
            await sandbox.run(
                [sandbox.kind.python(), "-I", "-S", "-"], seconds, given=str(arguments.get("code", "")).encode() or b"\n"
            )
        )
    if code is None:
        return f"error: there is no tool {name}"
    program = (
        f"{code.read_text(encoding='utf-8')}\n\nimport json as _json\nprint({name}(**_json.loads({json.dumps(arguments)!r})))\n"
    )
    if not name.isidentifier():
        return f"error: there is no tool {name}"
    return _output(await sandbox.run([sandbox.kind.python(), "-I", "-S", "-"], seconds, given=program.encode()))


def name_and_arguments(call: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """The name and arguments of a tool call. The arguments are None if they are not a JSON object."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        arguments = None
    return str(function.get("name", "")), arguments if isinstance(arguments, dict) else None


def problem_of(expression: str) -> str | None:
    """Why an expression is not plain arithmetic, or None."""
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "this is no expression"
    plain = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant)
    nodes = list(ast.walk(tree))
    numbers = all(type(node.value) in (int, float, complex) for node in nodes if isinstance(node, ast.Constant))
    if not numbers or not all(isinstance(node, plain) for node in nodes):
        return "only numbers and + - * / // % ** ( ) are allowed"
    return None


def _output(ran: Ran) -> str:
    if ran.timed_out or ran.stopped is not None:
        return f"error: it took too {'long' if ran.timed_out else 'much ' + str(ran.stopped)}"
    text = ran.output.strip()
    return text[:4000] if ran.code == 0 else f"error: {text[-1000:]}"
