"""Which tokens a divergence should compare: the part of the teacher's distribution that the k likeliest tokens of the teacher, of
the policy, or of both cover.

KL(teacher ‖ policy) weights each token by the teacher's probability. A token outside the compared ones counts with all others
together, so what they do not cover cannot be learned. The teacher is the model with a note, the policy the same model without it,
and the positions are those of answers that the teacher samples.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from clawctl.config import load_recipe
from clawctl.run.hint_places import with_hint
from clawctl.run.rows import HintPlace
from clawctl.train.advantages import likeliest
from scripts.benchmarks.real_circle import MAX_TOKENS, NOTES, PAST, RECIPE, lines
from scripts.benchmarks.table import Row

PLACE: HintPlace = "line"


def topk_rows(names: list[str]) -> list[Row]:
    """The covered share, the mean over the positions of 12 answers, for each note."""
    recipe = load_recipe(RECIPE)
    tokenizer: Any = AutoTokenizer.from_pretrained(recipe.model_path)
    model: Any = AutoModelForCausalLM.from_pretrained(recipe.model_path, dtype=torch.float32).eval()
    rows = []
    for name in names:
        covered = [_covered(model, tokenizer, recipe, request, NOTES[name]) for request in lines("past_requests.txt")[:PAST]]
        shares = torch.cat(covered).mean(0).tolist()
        whose = ("teacher", "policy", "union")
        rows += [Row(f"topk {name}", f"teacher_mass_in_{who}", share, "share") for who, share in zip(whose, shares, strict=True)]
    return rows


@torch.no_grad()
def _covered(model: Any, tokenizer: Any, recipe: Any, request: str, note: str) -> torch.Tensor:
    """[T, 3]: the teacher's probability of its own k likeliest tokens, of the policy's, and of both, at each position."""
    temperature, k = recipe.serve.temperature, likeliest(recipe.train)
    plain = [{"role": "user", "content": request}]
    prompts = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True).input_ids
        for messages in (with_hint(plain, note, PLACE), plain)
    ]
    torch.manual_seed(0)
    generated = model.generate(
        prompts[0], do_sample=True, temperature=temperature, top_k=0, top_p=1.0, max_new_tokens=MAX_TOKENS, pad_token_id=0
    )
    answer = generated[:, prompts[0].shape[1] :]
    teacher, policy = (
        (model(torch.cat([prompt, answer], 1)).logits[0, prompt.shape[1] - 1 : -1] / temperature).softmax(-1) for prompt in prompts
    )
    marks = [torch.zeros_like(teacher, dtype=torch.bool).scatter(1, p.topk(k).indices, True) for p in (teacher, policy)]
    return torch.stack([(teacher * mark).sum(1) for mark in (*marks, marks[0] | marks[1])], 1)
