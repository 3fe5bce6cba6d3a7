"""The memory estimate: worked by hand, compared with a real step, and applied before anything is loaded."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from clawctl.architectures import skeleton
from clawctl.config import LoraConfig, Recipe, TrainConfig
from clawctl.errors import ClawError
from clawctl.launch.plan import plan_memory
from clawctl.memory import box_of
from clawctl.trainers.local.costs import Cost, Shape, Spread, estimate, seconds_a_microbatch, shape_of
from clawctl.trainers.local.estimate import check_memory, forecast, longest_turn
from clawctl.trainers.local.ranks import Ranks
from tests import forked
from tests.named_models import TEXT_MODEL

# 1000 weights, 400 in each of 2 blocks; 10 trained by an adapter; 8 hidden, 25 tokens; widths 60 and 40
SHAPE = Shape(1000, 1000, 400, 200, 2, 8, 25, 100, 60, Cost(0, 800, 200, True, 16))
ADAPTED = Shape(1000, 10, 400, 200, 2, 8, 25, 100, 60, Cost(800, 10, 200, False, 16))
ALONE, FOUR = Spread(1, False, False), Spread(4, True, False)


def parts(shape: Shape, spread: Spread, **train: Any) -> dict[str, int]:
    estimated = estimate(shape, TrainConfig(tokens_per_microbatch=10, **train), spread)
    return {name: getattr(estimated, name) for name in ("weights", "gradients", "optimizer", "teacher", "activations", "logits")}


def test_every_part_is_as_worked_by_hand() -> None:
    logits, head = 2 * 4 * 10 * 25, 4 * 25 * 8
    whole = {"gradients": 4000, "optimizer": 8000, "teacher": 0, "logits": logits + head}
    # activations: 10 tokens * 1.5 * 4 bytes * 100; with checkpointing 10 * (2 * 1.5 * 4 * 60 + 4 * 8 * 2)
    assert parts(SHAPE, ALONE) == {"weights": 4000, "activations": 6000, **whole}
    assert parts(SHAPE, ALONE, gradient_checkpointing=True) == {"weights": 4000, "activations": 7840, **whole}
    assert parts(SHAPE, ALONE, dtype="bfloat16") == {"weights": 6000, "activations": 3000, **whole}
    assert parts(SHAPE, ALONE, teacher="base")["teacher"] == 4000
    assert parts(SHAPE, ALONE, method="binary")["teacher"] == 0
    assert parts(SHAPE, ALONE, method="binary", custom_loss="mine.py:x")["teacher"] == 4000
    # a custom loss may take all logits: six times 10 tokens by 25, once more for version 0's
    assert parts(SHAPE, ALONE, custom_loss="mine.py:x")["logits"] == 7 * 4 * 10 * 25 + head
    assert parts(SHAPE, ALONE, custom_loss="mine.py:x", teacher="base")["logits"] == 7 * 4 * 10 * 25 + head
    assert parts(ADAPTED, ALONE, custom_loss="mine.py:x", lora=LoraConfig())["logits"] == 7 * 4 * 10 * 25
    # an adapter: 1000 weights in bfloat16, 10 in float32 and again in bfloat16
    lora = {"lora": LoraConfig(), "dtype": "bfloat16"}
    adapted = {"gradients": 40, "optimizer": 80, "teacher": 0, "activations": 2500, "logits": logits}
    assert parts(ADAPTED, ALONE, **lora) == {"weights": 2000 + 40 + 20, **adapted}
    # four fifths kept whole: 10 * 1.25 * 2 * 100 * 0.8; of a fifth the input: 10 * 4 * 8 * 2 * 0.2
    narrow = replace(ADAPTED, block_width=20)
    assert parts(narrow, ALONE, gradient_checkpointing=0.2, **lora)["activations"] == 2000 + 128
    adapted |= {"activations": 3000}
    assert parts(ADAPTED, ALONE, lora=LoraConfig(quantize="nf4"), dtype="bfloat16") == {"weights": 440 + 400 + 40 + 20, **adapted}
    # sharded over four: a quarter, and two layers of 400 and the 200 outside of them put together
    cut = parts(SHAPE, FOUR, dtype="bfloat16")
    assert (cut["weights"], cut["gradients"], cut["optimizer"]) == (1000 + 2 * 1000, 1000 + 4 * 600, 2000)
    away = parts(SHAPE, Spread(1, True, True), dtype="bfloat16")
    assert (away["weights"], away["gradients"], away["optimizer"]) == (2000, 2400, 0)
    assert parts(SHAPE, Spread(2, False, False))["gradients"] == 8000


def test_a_microbatch_takes_its_operations_over_the_devices_speed() -> None:
    config = TrainConfig(tokens_per_microbatch=3)
    # forward: 2*800*3 + 2*200*3 + 4*16*6 = 6384; backward: as much, and of weights 2*800*3 + 2*200*3, and of attention 4*16*6
    assert seconds_a_microbatch(SHAPE, config, 1000.0) == pytest.approx((2 * 6384 + 6000 + 384) / 1000)
    again = config.changed(gradient_checkpointing=True)
    assert seconds_a_microbatch(SHAPE, again, 1000.0) == pytest.approx((2 * 6384 + 6000 + 384 + 4800 + 384) / 1000)


@pytest.mark.parametrize(
    ("name", "billions"),  # from their model cards; Qwen3.5-4B without its vision tower
    [("Qwen/Qwen3-0.6B", 0.596), ("Qwen/Qwen3-4B", 4.022), ("Qwen/Qwen3-8B", 8.191), ("Qwen/Qwen3.5-4B", 4.206)],
)
def test_known_architectures_have_their_published_number_of_weights(name: str, billions: float) -> None:
    shape = shape_of(skeleton(name), TrainConfig())
    assert shape.weights / 1e9 == pytest.approx(billions, abs=0.001)
    assert shape.trained == shape.weights


def test_an_adapter_has_as_many_weights_as_peft_makes() -> None:
    from peft import LoraConfig as PeftLora
    from peft import get_peft_model

    targets = LoraConfig().targets
    shape = shape_of(skeleton(str(TEXT_MODEL)), TrainConfig(lora=LoraConfig(rank=8)))
    made = get_peft_model(skeleton(str(TEXT_MODEL)), PeftLora(r=8, target_modules=list(targets)))
    assert shape.trained == sum(p.numel() for p in made.parameters() if p.requires_grad)


MEASURE = """
import gc
import torch
from clawctl.config import Recipe
from clawctl.trainers.local.estimate import forecast
from clawctl.trainers.local.batches import make_microbatch
from clawctl.trainers.local.model import load_policy
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.training import make_optimizer
from clawctl.trainers.local.trees import make_branch

def kernel(key):  # getrusage would tell the peak of the process that started this one
    [line] = [line for line in open("/proc/self/status").read().splitlines() if line.startswith(key)]
    return int(line.split()[1]) * 1024

torch.set_num_threads(1)
import peft, torch._dynamo  # what is imported late is no part of a step
before = kernel("VmRSS")
for again in (True, False):  # the peak only ever rises
    train = {"tokens_per_microbatch": 4096, "gradient_checkpointing": again, "merge": "none"}
    recipe, ranks = Recipe.model_validate({"train": train}), Ranks(0, 1, torch.device("cpu"))
    told = forecast(recipe, ranks).estimate
    policy = load_policy(recipe, ranks)
    optimizer = make_optimizer(policy, recipe.train)
    ids = torch.randint(0, policy.vocabulary, (4096,), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [make_branch(ids[at:at + 24], ids[at + 24:at + 1024], 1.0) for at in range(0, 4096, 1024)]
    policy.logprobs(make_microbatch(rows, "none", ranks.device)).sum().backward()
    optimizer.step()
    print(told.total, kernel("VmHWM") - before)
    del policy, optimizer
    gc.collect()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel tells no peak")
def test_a_real_step_needs_the_estimated_memory_within_a_factor_of_one_and_a_half() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        estimated, real = map(int, line.split())
        print(f"estimated {estimated / 2**20:.0f} MiB, measured {real / 2**20:.0f} MiB")
        assert real / 1.5 < estimated < real * 1.5


def test_the_speed_of_a_cpu_is_measured_and_that_of_an_absent_device_is_unknown() -> None:
    cpu = forecast(Recipe.model_validate({"train": {"tokens_per_microbatch": 64}}), Ranks(0, 1, torch.device("cpu")))
    assert cpu.seconds is not None
    assert 0 < cpu.seconds < 100
    assert any("a full microbatch takes about" in line for line in cpu.lines())
    named = forecast(on_card(peak_tflops=100), Ranks(0, 1, torch.device("cuda")))
    assert any("40% of the device's peak of 100 teraflops" in line for line in named.lines())
    if not torch.cuda.is_available():
        elsewhere = forecast(on_card(), Ranks(0, 1, torch.device("cuda")))
        assert elsewhere.seconds is None
        assert any("the time is not known" in line and "train.peak_tflops" in line for line in elsewhere.lines())


def on_card(**train: Any) -> Recipe:
    return Recipe.model_validate({"model": {"path": "Qwen/Qwen3-4B"}, "train": {"device_memory_gb": 24, **train}})


def test_training_that_cannot_fit_is_refused_before_loading_with_settings_that_fit() -> None:
    ranks = Ranks(0, 1, torch.device("cpu"))
    with pytest.raises(ClawError, match=r"needs at least 59\.9 GiB per device, which has 24\.0") as caught:
        check_memory(on_card(), ranks)
    assert caught.value.exit_code == 2
    assert "train.lora" in caught.value.fix
    check_memory(on_card(ignore_estimate=True), ranks)


def test_every_advice_would_make_it_fit() -> None:
    ranks = Ranks(0, 1, torch.device("cuda"))
    for train in (
        {"lora": {"rank": 16}, "dtype": "bfloat16", "tokens_per_microbatch": 32768},
        {"lora": {"rank": 16}, "dtype": "bfloat16"},
        {"dtype": "bfloat16", "gradient_checkpointing": True},
        {},
    ):
        prediction = forecast(on_card(**train), ranks)
        assert prediction.fits is False
        assert prediction.advice
        for advice in prediction.advice:
            changes = {
                key.removeprefix("train."): value for part in advice.split(" with ") for key, value in yaml.safe_load(part).items()
            }
            assert forecast(on_card(**{**train, **changes}), ranks).fits, advice


def test_the_longest_turn_is_the_one_that_would_just_fit_alone() -> None:
    ranks = Ranks(0, 1, torch.device("cuda"))
    settings: dict[str, Any] = {"lora": {"rank": 16}, "dtype": "bfloat16"}
    longest = longest_turn(on_card(**settings), ranks)
    assert longest is not None
    alone, longer = (
        forecast(on_card(**settings, gradient_checkpointing=True, tokens_per_microbatch=tokens), ranks)
        for tokens in (longest, longest + 1)
    )
    assert alone.memory is not None
    assert alone.estimate.total <= 1.1 * alone.memory < longer.estimate.total
    assert longest_turn(on_card(**settings, ignore_estimate=True), ranks) is None
    assert longest_turn(Recipe.model_validate({"train": settings}), Ranks(0, 1, torch.device("cpu"))) is None


def test_a_model_of_which_nothing_is_known_is_a_problem_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(ClawError, match="cannot be loaded"):
        skeleton(str(tmp_path))


def test_the_command_shows_the_estimate_without_a_run_or_weights(tmp_path: Path) -> None:
    recipe = tmp_path / "card.yaml"
    recipe.write_text("{model: {path: Qwen/Qwen3-8B}, train: {device_memory_gb: 24, dtype: bfloat16, lora: {rank: 16}}}")
    done = forked.run("train", "--estimate", "--run", tmp_path / "none", "--recipe", recipe)
    assert done.returncode == 0, done.stderr
    assert "8.19 billion weights, 43.6 million of them trained; 1 device" in done.stdout
    assert "of 23.00: does NOT fit" in done.stdout
    assert "would fit: train.gradient_checkpointing: true" in done.stdout
    assert not (tmp_path / "none").exists()


def test_of_a_small_device_cuda_takes_its_share_and_a_cpu_none() -> None:
    small = Recipe.model_validate({"train": {"device_memory_gb": 0.01}})
    cpu, gpu = (forecast(small, Ranks(0, 1, torch.device(kind))) for kind in ("cpu", "cuda"))
    assert (cpu.memory, gpu.memory) == (int(0.01 * 2**30), 0)
    with pytest.raises(ClawError, match=r"needs at least 0\.0\d+ GiB per device, which has 0\.0100"):
        check_memory(small, Ranks(0, 1, torch.device("cpu")))


def test_the_time_of_a_long_microbatch_is_printed_without_an_exponent() -> None:
    slow = replace(forecast(on_card(peak_tflops=1), Ranks(0, 1, torch.device("cuda"))), seconds=1234.5)
    assert any("a full microbatch takes about 1200 s at" in line for line in slow.lines())


def test_targets_that_name_no_layer_are_refused_with_the_names_there_are() -> None:
    with pytest.raises(ClawError, match="names no linear layer") as caught:
        forecast(on_card(lora={"rank": 8, "targets": ["query"]}), Ranks(0, 1, torch.device("cuda")))
    assert "q_proj" in caught.value.fix


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A mixture of 16 experts, of which two compute a token. Their weights are most of the model's."""
    from transformers import Qwen3MoeConfig

    Qwen3MoeConfig(
        vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        num_experts=16, num_experts_per_tok=2, moe_intermediate_size=256, intermediate_size=256, max_position_embeddings=1024,
    ).save_pretrained(tmp_path)  # fmt: skip
    return tmp_path


def test_of_a_mixture_the_experts_that_compute_a_token_count(mixture: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(mixture), attn_implementation="eager", experts_implementation="eager"
    )
    ids, kept = torch.arange(256)[None], dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with FlopCounterMode(display=False) as counted, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = model.model(ids).last_hidden_state
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    shape = shape_of(skeleton(str(mixture)), TrainConfig(tokens_per_microbatch=256))
    assert counted.get_total_flops() == pytest.approx(shape.cost.forward(256, 256 * 256, 0), rel=0.02)
    estimated = estimate(shape, TrainConfig(tokens_per_microbatch=256), ALONE).activations
    attention = 2 * 4 * 256 * 256 * 4  # eager attention keeps its weights
    measured = sum(size for storage, size in kept.items() if storage not in weights) - attention
    assert states.shape == (1, 256, 128)
    assert estimated == pytest.approx(measured, rel=0.5)


def test_experts_are_not_trained_by_an_adapter_nor_quantised_and_the_plan_says_so(mixture: Path) -> None:
    lora = {"rank": 4, "targets": "all-linear", "quantize": "nf4"}
    settings = {"model": {"path": str(mixture)}, "train": {"lora": lora, "dtype": "bfloat16"}, "up": {"stages": ["train"]}}
    plan = plan_memory(Recipe.model_validate(settings), box_of("24gb", {0}))
    assert [note for note in plan.notes if "are not trained by an adapter" in note and "nor does train.lora.quantize" in note]
    [train] = (share.parts for share in plan.shares if share.gpu == 0)
    experts = 2 * 16 * 3 * 128 * 256
    assert train["weights"] > 2 * experts
    path = mixture / "mine.yaml"
    path.write_text(yaml.safe_dump(settings))
    for options in ([], ["--fit"]):
        assert "are not trained by an adapter" in forked.run("up", path, "--estimate", "--card", "24gb", *options).stdout
