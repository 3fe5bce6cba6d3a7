"""Which GPUs and machines train. tests/train/test_train_launch.py starts torchrun for real."""

from pathlib import Path

import pytest

from clawctl.config.environment import Nodes, nodes
from clawctl.errors import ClawError
from clawctl.run.directory import open_run
from clawctl.trainers.local.backend import chosen, parse_gpus, rendezvous_options, torchrun_words
from tests import forked


def test_gpus_are_named_as_cuda_shows_them() -> None:
    assert parse_gpus("2,3") == [2, 3]
    assert chosen([2, 3], ["0", "1", "2", "3"], None) == ["2", "3"]
    assert chosen([1], ["4", "GPU-8932f937"], None) == ["GPU-8932f937"]
    assert chosen(parse_gpus("all"), ["4", "5"], None) == ["4", "5"]
    assert chosen("all", ["0", "1", "2", "3"], 2) == ["0", "1"]


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1,1", "1;2"])
def test_an_invalid_list_of_gpus_is_refused(text: str) -> None:
    with pytest.raises(ClawError, match="is not a list of GPUs"):
        parse_gpus(text)


def test_gpus_that_are_not_there_are_refused_by_number() -> None:
    with pytest.raises(ClawError, match=r"there is no GPU 2, no GPU 7: this machine has 2"):
        chosen([0, 2, 7], ["0", "1"], None)
    with pytest.raises(ClawError, match="CUDA shows none") as caught:
        chosen([0], [], None)
    assert "--processes" in caught.value.fix
    with pytest.raises(ClawError, match="GPUS_PER_NODE is 2, but --gpus names 1"):
        chosen([0], ["0", "1"], 2)
    with pytest.raises(ClawError, match="there is no GPU 2"):
        chosen("all", ["0", "1"], 3)


def test_several_nodes_use_the_schedulers_rendezvous_and_a_single_one_its_own() -> None:
    assert rendezvous_options(nodes({})) == ["--standalone"]
    named = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "4000", "GPUS_PER_NODE": "8"}
    assert nodes(named) == Nodes(2, 1, "head", 4000, 8)
    assert rendezvous_options(nodes(named)) == [
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--master-addr",
        "head",
        "--master-port",
        "4000",
    ]


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"NNODES": "two"}, "NNODES is 'two'"),
        ({"NNODES": "2", "NODE_RANK": "2"}, "NODE_RANK is 2, but NNODES is 2"),
        ({"NNODES": "2"}, "MASTER_ADDR is not set"),
    ],
)
def test_nodes_that_cannot_meet_are_refused(environment: dict[str, str], problem: str) -> None:
    with pytest.raises(ClawError, match=problem) as caught:
        rendezvous_options(nodes(environment))
    assert caught.value.exit_code == 2


def test_torchrun_is_not_handed_words_that_it_takes_for_its_own() -> None:
    assert torchrun_words(["train", "--run", "x", "--run=y", "--once"]) == ["train", "--run-dir", "x", "--run-dir=y", "--once"]


def test_more_processes_than_turns_are_refused_before_any_of_them_starts(tmp_path: Path) -> None:
    open_run(tmp_path / "run")
    done = forked.run("train", "--run", tmp_path / "run", "--batch-turns", "2", "--processes", "3")
    assert done.returncode == 2
    assert "3 trainers share 2 turns per step" in done.stderr
    assert "Traceback" not in done.stderr  # torchrun's own


def test_the_command_refuses_gpus_that_are_not_there_before_anything_starts(tmp_path: Path) -> None:
    open_run(tmp_path / "run")
    done = forked.run("train", "--run", tmp_path / "run", "--gpus", "97,98")
    assert done.returncode == 2
    assert "GPU" in done.stderr
    assert "Traceback" not in done.stderr
