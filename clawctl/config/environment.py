"""Reads environment variables. Only this module reads them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clawctl.config.variables import asks_for_debug, check_variables, first_set, gpu_numbers, options_of_variables
from clawctl.errors import ClawError


def from_environment(name: str) -> str | None:
    """Return the value of CLAWCTL_<name> or of an equivalent variable (`variables.SAME`), or None.

    Raises ClawError (exit code 2) if equivalent variables disagree.
    """
    first = first_set(name, os.environ)
    return first[1] if first else None


def warning_of_variables(command: str, refused: Mapping[str, str]) -> str | None:
    """Return a warning about variables that clawctl ignores, or None. Stages of `clawctl up` and ranks do not repeat it.

    Raises ClawError (exit code 2) if `command` must not ignore a variable, or if there are `refused` ones.
    """
    warning = check_variables(command, os.environ, refused)
    return None if is_rank() or is_stage_of_up() else warning


def options_from_environment(command: str) -> dict[str, list[str]]:
    """Return the options that variables of other systems set for this command, by variable. Raises ClawError (exit code 2)."""
    return options_of_variables(command, os.environ)


def is_stage_of_up() -> bool:
    """Whether `clawctl up` started this process."""
    return bool(os.environ.get("CLAWCTL_UP"))


def default_log_level(given: str) -> str:
    """Return `given`, or "debug" if OPENCLAW_DEBUG is on."""
    return "debug" if asks_for_debug(os.environ) else given


def gpus_from_environment(name: str) -> list[int] | None:
    """Return TRAIN_GPUS or ROLLOUT_GPUS as numbers, or None if unset. Raises ClawError (exit code 2)."""
    first = first_set(name, os.environ)
    return gpu_numbers(*first) if first else None


def openclaw_config() -> Path:
    """Return the path at which OpenClaw expects its configuration."""
    if named := os.environ.get("OPENCLAW_CONFIG_PATH"):
        return Path(named)
    if state := os.environ.get("OPENCLAW_STATE_DIR"):
        return Path(state) / "openclaw.json"
    return Path(os.environ.get("OPENCLAW_HOME") or Path.home()) / ".openclaw" / "openclaw.json"


def client_folder(variable: str | None) -> Path | None:
    """Return the folder that a client's own variable names for its configuration, or None."""
    named = os.environ.get(variable) if variable else None
    return Path(named) if named else None


def place_among_ranks() -> tuple[int, int, int]:
    """Return rank, number of ranks, and rank on this machine, as set by torchrun (or by Slurm through it). Without them: (0, 1,
    0).
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return rank, world, int(os.environ.get("LOCAL_RANK", "0"))


def is_rank() -> bool:
    """Whether torchrun started this process."""
    return "LOCAL_RANK" in os.environ


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines of one trainer, as a scheduler names them."""

    count: int  # NNODES
    rank: int  # NODE_RANK
    address: str | None  # MASTER_ADDR
    port: int  # MASTER_PORT
    gpus: int | None  # GPUS_PER_NODE


def nodes(environment: Mapping[str, str] = os.environ) -> Nodes:
    """Return the nodes that the environment names; by default only this machine. Raises ClawError (exit code 2)."""

    def number(name: str, default: int | None) -> int | None:
        text = environment.get(name)
        if not text:
            return default
        if not text.isdigit():
            raise ClawError(f"{name} is {text!r} in the environment", "set it to a whole number, or unset it", 2)
        return int(text)

    count, rank = number("NNODES", 1) or 1, number("NODE_RANK", 0) or 0
    if rank >= count:
        raise ClawError(f"NODE_RANK is {rank}, but NNODES is {count}", "number the nodes from 0 to NNODES - 1", 2)
    address = environment.get("MASTER_ADDR") or None
    return Nodes(count, rank, address, number("MASTER_PORT", 29500) or 29500, number("GPUS_PER_NODE", None))


_NAMED_CODE = "CLAWCTL_NAMED_CODE"  # set by `up` for its stages: comma-separated digests


def name_code_for_stages(digest: str) -> None:
    """Inform stages that this process starts that the user named this code (`clawctl/named_code.py`)."""
    named = os.environ.get(_NAMED_CODE, "")
    os.environ[_NAMED_CODE] = f"{named},{digest}" if named else digest


def names_code_from_up(digest: str) -> bool:
    """Whether the user named this code for the `clawctl up` that started this stage."""
    return digest in os.environ.get(_NAMED_CODE, "").split(",")


def named_code_for_jobs() -> str:
    """Return the digests that `name_code_for_stages` has collected, for jobs on other machines."""
    return os.environ.get(_NAMED_CODE, "")


def launch_of_job() -> str | None:
    """Return the launch that this process is a job of, or None if no scheduler started it for `clawctl up --on`."""
    return os.environ.get("CLAWCTL_LAUNCH") or None


def ray_address() -> str | None:
    """Return the address of the Ray cluster that this machine uses, from Ray's own variable, or None."""
    return os.environ.get("RAY_ADDRESS") or None


def secrets_from_environment(names: Sequence[str]) -> dict[str, str]:
    """Return the variables among `names` that are set, with their values."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def state_folder() -> Path | None:
    """Return the folder for clawctl's data about this user, or None if the user has no home folder."""
    state = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "clawctl"
    except RuntimeError:  # a user without an entry in the user database, as in some containers
        return None


def model_cache() -> Path:
    """Return the folder for converted models. Raises ClawError (exit code 2)."""
    if named := from_environment("MODEL_CACHE"):
        return Path(named).absolute()
    try:
        cache = os.environ.get("XDG_CACHE_HOME")
        return (Path(cache) if cache else Path.home() / ".cache") / "clawctl" / "models"
    except RuntimeError as error:  # a user without an entry in the user database, as in some containers
        raise ClawError("this user has no home folder for converted models", "set CLAWCTL_MODEL_CACHE to a folder", 2) from error


def environment_with(changes: dict[str, str]) -> dict[str, str]:
    """Return the environment of a process that replaces this one or is started by it."""
    return {**os.environ, **changes}


_OF_ANY_PROGRAM = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "LD_LIBRARY_PATH", "NO_PROXY",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "CUDA_VISIBLE_DEVICES", "UV_CACHE_DIR",
    "PIP_CACHE_DIR",
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_CACHE",
    "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS",
}  # fmt: skip
_PROXIES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"}


def environment_of_program(
    changes: Mapping[str, str] | None = None, named: Sequence[str] = (), all_of: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment of a program that is not part of clawctl.

    It contains the locations of programs, caches and certificates, `changes`, and the variables in `named`. This is an allow list,
    because secrets can have any name. A proxy address with a password is excluded.
    """
    given = os.environ if all_of is None else all_of
    kept = {name: value for name, value in given.items() if name in _OF_ANY_PROGRAM or name.startswith(("LC_", "XDG_"))}
    kept |= {name: given[name] for name in _PROXIES if name in given and "@" not in given[name]}
    kept |= {name: given[name] for name in named if name in given}
    return {**kept, **(changes or {})}


def names_in(option: object) -> list[str]:
    """Return the names in an option: a list, or a comma-separated text."""
    names = option.split(",") if isinstance(option, str) else list(option) if isinstance(option, list | tuple) else []
    return [str(name).strip() for name in names if str(name).strip()]


def show_gpus(gpus: list[int]) -> None:
    """Make only these GPUs visible to this process and its children. Must be called before CUDA is initialised."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))


def tinker_url() -> str | None:
    """Return the address of the service that Tinker's SDK would read."""
    return os.environ.get("TINKER_BASE_URL") or None


def without_telemetry() -> None:
    """Stop Tinker's SDK from reporting errors and timings, which may quote the data that was sent. A value set by the user is
    kept.
    """
    os.environ.setdefault("TINKER_TELEMETRY", "0")
