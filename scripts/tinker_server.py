"""SkyRL's Tinker server on this machine, for `scripts/bench backends`. Run it in the environment from `scripts/venv-tinker`.

usage: FOLDER/bin/python scripts/tinker_server.py MODEL STATE PORT [PROCESSES]

MODEL is a folder with float32 weights. With bfloat16 weights, SkyRL rounds log-probabilities to 1/16. STATE contains the database
and the checkpoints. A server that is restarted with the same folder still has them. The weights are sharded over PROCESSES, which
find each other as they would on several machines.
"""

import os
import runpy
import socket
import subprocess
import sys
import typing
from pathlib import Path

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # required by pydantic below Python 3.12


def main(model: str, state: str, port: str, processes: str = "1") -> None:
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    def engine_command(_: object, config: EngineConfig) -> list[str]:
        return [sys.executable, __file__, "skyrl.tinker.engine", *config_to_argv(config)]

    count = int(processes)
    # Each model reserves optimizer state for all adapters, and SkyRL keeps the models of killed trainers.
    # With one sequence per process and microbatch, only one shape per length is compiled.
    settings: dict[str, object] = {"max_lora_adapters": 40, "max_lora_rank": 8}
    settings |= {"train_micro_batch_size": count, "sample_max_num_sequences": count}
    if count > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        settings |= {"coordinator_address": coordinator, "num_processes": count, "fully_sharded_data_parallel_size": count}
        options = ["--coordinator-address", coordinator, "--num-processes", processes, "--process-id"]
        for number in range(1, count):
            subprocess.Popen([sys.executable, __file__, "skyrl.backends.jax", *options, str(number)])

    # SkyRL 0.3.0 starts its engine with `uv run`, which would create another environment from a checkout of SkyRL.
    api._build_uv_run_cmd_engine = engine_command
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        backend_config=settings,
        session_cleanup_interval_sec=5 if count == 1 else -1,  # it unloads models in the first process alone
        session_timeout_sec=40,
        checkpoints_base=Path(state) / "checkpoints",
        database_url=f"sqlite:///{state}/tinker.db",
    )
    uvicorn.run(api.app, host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", f"{sys.prefix}/jax-cache")  # compiling takes longer than the steps do
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1")
    if sys.argv[1].startswith("skyrl."):
        runpy.run_module(sys.argv.pop(1), run_name="__main__")
    else:
        main(*sys.argv[1:])
