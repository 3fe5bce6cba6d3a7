"""A server with a vision model: images in every API, captured with their positions in the ids, and trainable."""

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText

from clawctl.collect.rows import ClosedTurn
from clawctl.run.policies import move_live, publish_policy
from clawctl.run.rows import Exchange, Policy
from clawctl.vision.reader import image_reader
from tests.serve.served import Server
from tests.vision.tiny import logprobs_by_transformers, picture
from tests.waiting import until

RED = picture(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, vision_path: Path) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("served") / "run", vision_path, splice=True) as running:
        yield running


def url_of(content: bytes) -> str:
    return f"data:image/png;base64,{b64encode(content).decode()}"


def part(content: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(content)}}


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    # with a seed, because these random weights also sample the image token, which transformers takes for another image
    request = {"model": "tiny", "max_tokens": 8, "seed": 7, **body}
    headers = {"authorization": "Bearer key", "anthropic-version": "2023-06-01"}
    return httpx.post(f"{server.url}/{path}", json=request, headers=headers, timeout=300)


def said(server: Server, answer: httpx.Response) -> dict[str, Any]:
    """The line of a request that was just answered."""
    assert answer.status_code == 200, answer.text
    return server.captured()[-1]


def test_images_are_answered_in_every_api_and_captured_with_their_places_and_exact_logprobs(
    server: Server, vision_path: Path
) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(RED).decode()}
    shown, text_block = {"type": "image", "source": source}, {"type": "text", "text": "click"}
    lines = [
        said(server, post(server, "chat/completions", messages=[{"role": "user", "content": [part(RED), text_block]}])),
        said(server, post(server, "messages", messages=[{"role": "user", "content": [shown, text_block]}])),
        said(server, post(
            server, "responses", max_output_tokens=8, max_tokens=None,
            input=[{"role": "user", "content": [
                {"type": "input_image", "image_url": url_of(RED)}, {"type": "input_text", "text": "click"},
            ]}],
        )),
    ]  # fmt: skip
    reader = image_reader(str(vision_path))
    assert reader is not None
    model = AutoModelForImageTextToText.from_pretrained(vision_path, dtype=torch.float32).eval()
    name = sha256(RED).hexdigest()
    for line in lines:
        (image,) = line["images"]
        assert (image["sha256"], image["tokens"]) == (name, reader.picture(RED).tokens)
        assert line["prompt_ids"][image["start"] :][: image["tokens"]] == [reader.placeholder] * image["tokens"]
        assert line["prompt_ids"] == lines[0]["prompt_ids"]
    # transformers takes an image token that the model samples for another image
    comparable = [line for line in lines if reader.placeholder not in line["completion_ids"]]
    assert comparable
    for line in comparable:
        expected = logprobs_by_transformers(model, reader, line["prompt_ids"], [RED], line["completion_ids"])
        assert line["logprobs"] == pytest.approx(expected, abs=1e-4)
    assert (server.run.images / name).read_bytes() == RED
    lines[0].pop("schema_version", None)
    turn = ClosedTurn(Exchange(**lines[0]), "s", None, 0, "main", [{"role": "user", "content": "no"}], False).row()
    assert (turn.trainable, turn.images) == (True, lines[0]["images"])


def test_a_conversation_with_screenshots_continues_with_its_answers_spliced_as_sampled(server: Server) -> None:
    messages = [{"role": "user", "content": [part(RED), {"type": "text", "text": "look"}]}]
    first = post(server, "chat/completions", messages=messages)
    before = said(server, first)
    answer = first.json()["choices"][0]["message"]
    later = [*messages, answer, {"role": "user", "content": [{"type": "text", "text": "now"}, part(picture(2)), part(RED)]}]
    line = said(server, post(server, "chat/completions", messages=later))
    assert [image["sha256"] for image in line["images"]] == [sha256(file).hexdigest() for file in (RED, picture(2), RED)]
    if line["spliced"]:
        assert line["prompt_ids"][: len(before["prompt_ids"])] == before["prompt_ids"]


def test_unreadable_images_are_refused_and_text_is_answered(server: Server) -> None:
    assert server.health()["engine"]["images"] is True
    cut = post(server, "chat/completions", messages=[{"role": "user", "content": [part(RED[:80])]}])
    assert (cut.status_code, "decoded" in cut.text) == (400, True), cut.text
    long = post(server, "chat/completions", messages=[{"role": "user", "content": [part(picture(3, 1001, 5))]}])
    assert (long.status_code, "200 times" in long.text) == (400, True), long.text
    spelled = said(server, post(server, "chat/completions", messages=[{"role": "user", "content": "<|image_pad|>"}]))
    assert spelled["images"] is None


def test_an_adapter_is_swapped_in_while_images_are_served(server: Server, vision_path: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(vision_path, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight += 0.2 * torch.randn_like(weight)
    policy = Policy(1, 0, 1, "combine", "adapter", str(vision_path), [], None, {}, 0.0)
    publish_policy(server.run, policy, adapted.save_pretrained)
    move_live(server.run, 1, by="test")
    until(lambda: server.health()["live"] == 1)
    line = said(server, post(server, "chat/completions", messages=[{"role": "user", "content": [part(RED)]}]))
    reader = image_reader(str(vision_path))
    merged = adapted.merge_and_unload().eval()
    expected = logprobs_by_transformers(merged, reader, line["prompt_ids"], [RED], line["completion_ids"])
    assert line["policy_version"] == 1
    assert line["logprobs"] == pytest.approx(expected, abs=1e-4)
