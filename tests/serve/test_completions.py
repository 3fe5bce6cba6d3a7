"""Plain completions: token in, token out, at the embedded engine and at upstreams."""

from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from asking import body, post
from served import Server, logprobs_of
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from test_sdks import rows_since
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.asgi import serving


def ask(server: Server, **settings: Any) -> httpx.Response:
    request = {"model": "tiny", "prompt": "hello how", "max_tokens": 5, "logit_bias": {"2": -100}, **settings}
    return post(server, orjson.dumps(request), path="/completions")


def test_the_engines_exact_input_and_output_ids_are_returned_and_captured(server: Server, model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    ids = tokenizer.encode("hello how")
    for prompt in ("hello how", ids):
        completion = server.client.completions.create(
            model="tiny", prompt=prompt, max_tokens=5, logprobs=2, extra_body={"return_token_ids": True}
        )
        choice, line = completion.choices[0], server.captured()[-1]
        assert (completion.object, completion.id) == ("text_completion", "cmpl" + line["exchange_id"])
        assert (choice.prompt_token_ids, choice.token_ids) == (line["prompt_ids"], line["completion_ids"])
        assert line["prompt_ids"] == ids
        assert tokenizer.decode(line["completion_ids"], skip_special_tokens=True) == choice.text == line["response"]["content"]
        assert (line["api"], line["messages"]) == ("completions", [{"role": "user", "content": "hello how", "plain": True}])
        assert line["untrainable_reason"] is None
        model = AutoModelForCausalLM.from_pretrained(model_path)
        assert line["logprobs"] == pytest.approx(logprobs_of(model, ids, line["completion_ids"]), abs=1e-3)
        control = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        shown = [p for i, p in zip(line["completion_ids"], line["logprobs"], strict=True) if i not in control]
        assert choice.logprobs.token_logprobs == shown[: len(choice.logprobs.tokens)]  # a control token has no text and no entry
        assert choice.text.startswith("".join(choice.logprobs.tokens))  # the last character may lack bytes
        assert choice.logprobs.text_offset == [len("".join(choice.logprobs.tokens[:i])) for i in range(len(choice.logprobs.tokens))]
        assert all(len(top) >= 2 for top in choice.logprobs.top_logprobs)
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (len(ids), len(line["completion_ids"]))


@pytest.mark.parametrize("name", ["tiny", "tiny@0"])
def test_the_tokens_of_a_prompt_are_scored_with_echo_and_logprobs(server: Server, model_path: Path, name: str) -> None:
    model, before = AutoModelForCausalLM.from_pretrained(model_path), len(server.captured())
    ids = [5, 6, 7, 2, 9, 10, 11, 12]
    expected = logprobs_of(model, ids[:1], ids[1:])
    settings = {"model": name, "echo": True, "logprobs": 1}
    scored = ask(server, prompt=[ids, ids[:3]], max_tokens=0, **settings).json()
    full, short = (choice["logprobs"] for choice in scored["choices"])
    assert full["token_logprobs"][0] is None
    assert full["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
    assert short["token_logprobs"] == pytest.approx(full["token_logprobs"][:3], abs=1e-3)
    assert len(full["tokens"]) == len(full["text_offset"]) == len(full["top_logprobs"]) == len(ids)
    assert (scored["usage"]["completion_tokens"], len(server.captured())) == (0, before)  # nothing was sampled
    tail = ask(server, prompt=ids, max_tokens=0, logprob_start_len=5, **settings).json()["choices"][0]["logprobs"]["token_logprobs"]
    assert tail[:5] == [None] * 5
    assert tail[5:] == pytest.approx(expected[4:], abs=1e-3)
    for bias in ({"2": -100}, {"2": 100}):  # 2 is the end token, which is not shown
        single = ask(server, prompt=ids, max_tokens=1, logit_bias=bias, **settings).json()["choices"][0]["logprobs"]
        assert len(single["token_logprobs"]) == len(single["top_logprobs"]) == len(ids) + 1
        assert single["token_logprobs"][1:-1] == pytest.approx(expected, abs=1e-3)


def test_a_control_token_in_a_prompt_is_a_control_token_here_and_nowhere_else(server: Server) -> None:
    assert ask(server, prompt="<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").status_code == 200
    assert server.captured()[-1]["prompt_ids"].count(1) == 2
    server.say("<|im_start|>")
    assert server.captured()[-1]["prompt_ids"].count(1) == 2  # those of the template


def test_several_prompts_have_answers_of_their_own_in_order(server: Server, model_path: Path) -> None:
    tokenizer, before = AutoTokenizer.from_pretrained(model_path), len(server.captured())
    prompts = ["hello", tokenizer.encode("thanks a lot"), "how are you"]
    completion = ask(server, prompt=prompts, n=2, echo=True, seed=7).json()
    starts = ["hello"] * 2 + ["thanks a lot"] * 2 + ["how are you"] * 2
    assert [choice["index"] for choice in completion["choices"]] == list(range(6))
    assert all(choice["text"].startswith(start) for choice, start in zip(completion["choices"], starts, strict=True))
    assert completion["usage"]["prompt_tokens"] == sum(len(tokenizer.encode(start)) for start in starts[::2])
    assert completion["usage"]["completion_tokens"] == 30
    lines = server.captured()[before:]
    assert sorted(line["messages"][0]["content"] for line in lines) == sorted(starts)
    assert all(not line["response"]["content"].startswith(line["messages"][0]["content"]) for line in lines)


def test_a_stream_has_the_same_content_as_the_whole_answer(server: Server) -> None:
    settings: dict[str, Any] = {"seed": 3, "n": 2, "echo": True, "extra_body": {"return_token_ids": True}}
    create = server.client.completions.create
    whole = create(model="tiny", prompt="hello how", max_tokens=6, **settings)
    texts, ends = ["", ""], {}
    for chunk in create(
        model="tiny", prompt="hello how", max_tokens=6, stream=True, stream_options={"include_usage": True}, **settings
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends[choice.index] = (choice.finish_reason, choice.token_ids)
        usage = chunk.usage
    assert texts == [choice.text for choice in whole.choices]
    assert ends == {choice.index: (choice.finish_reason, choice.token_ids) for choice in whole.choices}
    assert usage == whole.usage


def test_a_stop_string_ends_the_text_and_the_default_limit_is_sixteen_tokens(server: Server) -> None:
    text = ask(server, seed=1, max_tokens=12).json()["choices"][0]["text"]
    cut = ask(server, seed=1, max_tokens=12, stop=[text[4:7]]).json()["choices"][0]
    assert cut["text"] == text[: text.index(text[4:7])]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", text[4:7])
    request = {"prompt": "hello", "logit_bias": {"2": -100}}
    assert post(server, orjson.dumps(request), path="/completions").json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [1] * 5000}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 1}, "prompt"),  # its ids are not known
        ({"echo": True, "logprobs": 1, "stream": True, "prompt": [5, 6]}, "stream"),
        ({"echo": True, "logprobs": 1, "prompt": [5, 10**6]}, "prompt"),
        ({"echo": True, "max_tokens": 0, "prompt": [5, 6]}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
def test_wrong_or_unsupported_parameters_are_refused_by_name(server: Server, settings: dict[str, Any], param: str) -> None:
    answer = ask(server, **settings)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert error["type"] == "invalid_request_error"


def test_parameters_without_effect_are_not_refused(server: Server) -> None:
    nothing = {"suffix": None, "best_of": 1, "prompt_logprobs": None, "user": "u", "echo": False, "use_beam_search": False}
    assert ask(server, **nothing).status_code == 200


def test_it_needs_the_key_and_is_counted(server: Server) -> None:
    assert post(server, b"{}", key="other", path="/completions").status_code == 401
    assert (
        'clawctl_requests_total{api="completions",key="default",status="200"}'
        in httpx.get(server.url.removesuffix("/v1") + "/metrics").text
    )


def test_text_that_a_later_prompt_adds_is_the_next_state(server: Server) -> None:
    """A client that renders its own prompts: a question, its answer, then the user's message."""
    before = len(server.captured())
    first = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    said = ask(server, prompt=first, logit_bias={}).json()["choices"][0]["text"]
    added = "<|im_end|>\n<|im_start|>user\nthanks<|im_end|>\n<|im_start|>assistant\n"
    ask(server, prompt=first + said + added)
    rows = rows_since(server, before)
    assert [row.parent_evidence for row in rows] == [None, "completion"]
    assert rows[0].next_state == ([{"role": "user", "content": "thanks"}] if said else None)
    assert [row.trainable for row in rows] == [bool(said), False]


# ---- upstreams -------------------------------------------------------------------------------------------------------------


class Plain:
    """An upstream with plain completions, as vLLM streams them: two tokens, "so" and " it", with ids 5 and 6. Its chat wants a
    limit."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "theirs", "object": "model", "max_model_len": 4096}]})

    async def _chat(self, request: Request) -> Response:
        self.asked.append(await request.json())
        return JSONResponse({"error": {"message": "max_tokens: Field required"}}, 400)

    async def _complete(self, request: Request) -> Response:
        self.asked.append(await request.json())

        def frames() -> Any:
            for token, i in (("so", 5), (" it", 6)):
                logprobs = {"tokens": [token], "token_logprobs": [-0.5], "top_logprobs": [{token: -0.5}], "text_offset": [0]}
                choice = {"index": 0, "text": token, "token_ids": [i], "logprobs": logprobs, "finish_reason": None}
                yield {"choices": [choice | ({"prompt_token_ids": [1, 2, 3]} if i == 5 else {})]}
            yield {"choices": [{"index": 0, "text": "", "token_ids": [], "logprobs": None, "finish_reason": "stop"}]}
            yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}

        events = "".join(f"data: {orjson.dumps(frame).decode()}\n\n" for frame in frames())
        return StreamingResponse(iter([events + "data: [DONE]\n\n"]), media_type="text/event-stream")


def test_an_upstream_gets_the_prompt_as_it_is_and_its_ids_are_kept(tmp_path: Path, model_path: Path) -> None:
    plain = Plain()
    with serving(plain.app) as url, Server(tmp_path / "run", model_path, upstream={"url": url, "kind": "vllm"}) as server:
        for prompt in ("<|im_start|>a", [7, 8, 9]):
            answer = ask(server, prompt=prompt, logprobs=1, add_special_tokens=False, logit_bias=None).json()
            sent = plain.asked[-1]
            assert (sent["prompt"], sent["max_tokens"], sent["add_special_tokens"]) == (prompt, 5, False)
            assert not sent.keys() & {"messages", "tools", "return_tokens_as_token_ids"}
            assert answer["choices"][0]["text"] == "so it"
            assert answer["choices"][0]["logprobs"]["tokens"] == ["so", " it"]
            line = server.captured()[-1]
            assert (line["prompt_ids"], line["completion_ids"], line["logprobs"]) == ([1, 2, 3], [5, 6], [-0.5, -0.5])
            assert line["response"]["content"] == "so it"
        ask(server, max_tokens=None, logit_bias=None)
        assert plain.asked[-1]["max_tokens"] is None, "what the context has left: without the field it would be 16"
        assert_one_that_needs_a_limit_is_told_of(server, plain)


def assert_one_that_needs_a_limit_is_told_of(server: Server, plain: Plain) -> None:
    refused = post(server, b'{"messages": [{"role": "user", "content": "hello"}]}')
    assert refused.status_code == 400
    assert "serve.max_tokens" in refused.json()["error"]["message"]
    assert "max_tokens" not in plain.asked[-1]
    assert "serve.max_tokens" not in post(server, body()).json()["error"]["message"]
