"""`serve:`, the server."""

from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import HttpUrl, Origin, Section


class LimitsConfig(Section):
    body_mb: float = Field(32.0, gt=0)
    """Largest body of a request, in MB; a larger one is refused with 413."""
    body_values: int = Field(100_000, gt=0)
    """Most values (list items and object fields) in the JSON of a request; a request with more is refused with 413."""
    header_kb: int = Field(64, gt=0)
    """Largest request line and headers together, in KB; a larger one is refused with 431."""
    header_s: float = Field(20.0, gt=0)
    """A client has so long to send the headers of a request; then it is refused with 408."""
    body_s: float = Field(120.0, gt=0)
    """A client has so long to send a body; then it is refused with 408."""
    stalled_s: float = Field(60.0, gt=0)
    """A client that does not take what is sent to it for so long is cut off; its turn is captured as cancelled."""
    connections: int = Field(4096, gt=0)
    """Open connections at a time; one more is refused with 503."""
    concurrent_per_key: int = Field(1024, gt=0)
    """Running requests of one API key at a time; one more is refused with 429."""


class UpstreamConfig(Section):
    url: HttpUrl
    """Base URL of an OpenAI-compatible server that somebody else runs (`http://host:port/v1`)."""
    kind: Literal["vllm", "sglang", "openai"] = "openai"
    """What it is. Of vLLM and SGLang exact token ids can be had; without them turns are kept but not trained."""
    model: str | None = None
    """The name to ask it for. Unset: the first that it lists."""
    api_key: str | None = None
    """Its key. Unset: `CLAWCTL_UPSTREAM_KEY`, else none."""


class TemperatureConfig(Section):
    at_least: float | None = Field(None, ge=0, le=100)
    """A lower temperature is raised to this one."""
    always: float | None = Field(None, ge=0, le=100)
    """This temperature is used, whatever the client asks for."""

    @model_validator(mode="after")
    def _one(self) -> "TemperatureConfig":
        if (self.at_least is None) == (self.always is None):
            raise PydanticCustomError("one_of_two", "write either at_least or always")
        return self


Ignorable = Literal[
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens",
    "bad_words", "allowed_token_ids", "ignore_eos", "seed",
]  # fmt: skip


class SamplingRule(Section):
    temperature: TemperatureConfig | None = None
    """`{at_least: 0.7}` or `{always: 1.0}`. Unset: as the client asks."""
    ignore: list[Ignorable] | Literal["all"] | None = None
    """Settings of a request that are ignored, as if the client had not sent them: `[top_p, top_k]`; `all` names all of them. A turn
    that was sampled with any of them, but for `seed`, cannot be trained. Unset: none."""


class SamplingConfig(SamplingRule):
    per_client: dict[str, SamplingRule] = {}
    """Rules for some clients, each with `temperature` and `ignore`: `{aider: {temperature: {at_least: 0.7}}}`. A name is one of the
    known clients in docs/clients.md, or what the client's `User-Agent` begins with. What the rule leaves out is taken from the
    general rule (`serve.sampling.temperature`, `serve.sampling.ignore`)."""
    per_key: dict[str, SamplingRule] = {}
    """Rules for some API keys, by the key's name: `{ci: {temperature: {always: 1.0}}}`. They come before the rules for clients."""


class ServeConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on. Elsewhere 0.0.0.0; here only this machine, for conversations are private."""
    port: int = Field(30000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one and writes it to `RUN/serve.json`."""
    allowed_hosts: list[str] = []
    """Names, besides `localhost` and `host`, under which requests without a key are answered: `["claw.example.com"]`, `["*.lan"]`.
    Under IP addresses they always are. `["*"]` allows every name, also that of a web page which points it at this server."""
    cors_origins: list[Origin] = []
    """Origins of web pages that may read the answers of this server: `["https://app.example.com"]`. A page needs an API key, as any
    client does. `["*"]` allows every page: with a valid key it may read the answers, without one nothing."""
    api_key: str | None = None
    """The key clients must send. Unset: made once, shown once, kept in `RUN/api_key` (0600), where the other stages find it."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """What runs the model: `transformers` is embedded in the serve process, `vllm` is started and kept as its child."""
    engine_args: list[str] = []
    """More arguments for vLLM's server, as on its command line: `["--max-model-len", "32768"]`."""
    engine_python: str | None = None
    """The Python interpreter that has vLLM. Unset: the one that runs clawctl."""
    upstream: UpstreamConfig | None = None
    """Serve through a server that somebody else runs, instead of an engine of our own."""
    temperature: float = Field(1.0, ge=0)
    """Used where the client names none."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Used where the client names none. Below 1 a turn is kept but not trained: its logprobs are not the policy's."""
    sampling: SamplingConfig = SamplingConfig()
    """What the server changes in the sampling that clients ask for. Some clients always send temperature 0, and what is sampled at
    temperature 0 cannot be trained. Every change is named in the answer's `X-Clawctl-Sampling` header and counted in `/health`."""
    max_tokens: int | None = Field(None, gt=0)
    """Longest answer, in tokens, where the client names no limit. Unset: what the context has left. Set it where a model may write
    without end, or where an upstream refuses requests without a limit."""
    splice: bool = False
    """Put earlier answers of ours into the prompt as they were sampled, where a client sends them back in other words (other white
    space, tool arguments written anew, reasoning left out). It changes what the model sees. Not for upstreams other than vLLM."""
    pinned_versions: int = Field(2, ge=1)
    """How many versions other than the live one (`NAME@3`) stay loaded at a time."""
    gpus: list[int] | None = None
    """GPUs of this machine that the server may use, by number; unset: all."""
    kv_cache_tokens: int = Field(131072, gt=0)
    """Tokens that the engine's cache holds for all running requests together."""
    max_batch_tokens: int = Field(2048, gt=0)
    """Tokens computed in one engine step; a longer prompt is cut into several."""
    threads: int | None = None
    """CPU threads of the engine; unset: PyTorch's choice."""
    limits: LimitsConfig = LimitsConfig()
    """What a client may ask at most."""
    drain_s: float = Field(120.0, ge=0)
    """After SIGTERM running requests have so long to finish; then they are ended and captured as cancelled."""
    drain_notice_s: float = Field(0.0, ge=0)
    """After SIGTERM requests are still accepted for so long while `/health/ready` says 503, for a load balancer to notice."""
