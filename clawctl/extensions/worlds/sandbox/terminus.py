"""Runs harbor's agent terminus-2 in the current sandbox, through tmux. Needs a Python that has the package harbor."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

os.environ.update({"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"})

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths


class ThisMachine(BaseEnvironment):
    """The machine that this process runs on."""

    @staticmethod
    def type() -> str:
        return "this machine"

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        pass

    async def stop(self, delete: bool) -> None:
        pass

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        shutil.copy(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        shutil.copy(source_path, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        shutil.copytree(source_dir, target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=cwd, env={**os.environ, **(env or {})}, stdin=-3, stdout=-1, stderr=-1
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), timeout_sec)
        except TimeoutError:
            process.kill()
            await process.wait()
            return ExecResult(stdout="", stderr="it took too long", return_code=124)
        return ExecResult(
            stdout=output.decode(errors="replace"), stderr=errors.decode(errors="replace"), return_code=process.returncode
        )


async def main() -> None:
    folder = Path(tempfile.mkdtemp())
    paths = TrialPaths(folder)
    for name in ("environment", "agent"):
        (folder / name).mkdir(exist_ok=True)
    environment = ThisMachine(folder / "environment", "task", "task__here", paths, EnvironmentConfig())
    settings: dict[str, Any] = {"max_input_tokens": 131072, "max_output_tokens": 32768, "input_cost_per_token": 0.0}
    agent = Terminus2(
        logs_dir=folder / "agent", model_name=f"openai/{os.environ['MODEL']}", api_base=os.environ["OPENAI_BASE_URL"],
        record_terminal_session=False, enable_summarize=False, model_info={**settings, "output_cost_per_token": 0.0},
    )  # fmt: skip
    await agent.setup(environment)
    await agent.run(os.environ["INSTRUCTION"], environment, AgentContext())


if __name__ == "__main__":
    asyncio.run(main())
