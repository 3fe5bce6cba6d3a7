"""Settings of `serve:`, the server."""

from typing import Literal

from pydantic import Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import GpuNumbers, Hours, HttpUrl, Origin, Section


class LimitsConfig(Section):
    body_mb: float = Field(32.0, gt=0)
    """Largest request body, in MB. The server refuses larger ones with status 413."""
    body_values: int = Field(100_000, gt=0)
    """Maximum number of values (list items and object fields) in the JSON of one request. The server refuses more with status
    413."""
    header_kb: int = Field(64, gt=0)
    """Largest request line and headers together, in KB. The server refuses larger ones with status 431."""
    header_s: float = Field(20.0, gt=0)
    """Seconds in which a client must send the request headers. After that, the server refuses the request with status 408."""
    body_s: float = Field(120.0, gt=0)
    """Seconds in which a client must send the request body. After that, the server refuses the request with status 408."""
    stalled_s: float = Field(60.0, gt=0)
    """Seconds after which the server disconnects a client that does not read its answer. The turn is captured as cancelled."""
    connections: int = Field(4096, gt=0)
    """Maximum number of open connections. The server refuses further ones with status 503."""
    concurrent_per_key: int = Field(1024, gt=0)
    """Maximum number of running requests per API key. The server refuses further ones with status 429."""


class UpstreamConfig(Section):
    url: HttpUrl
    """Base URL of an OpenAI-compatible server that is already running (`http://host:port/v1`)."""
    others: list[HttpUrl] = []
    """Further vLLM servers of the same model: they and `url` are a pool (docs/engines.md). They need `kind: vllm` and
    `train.lora`."""
    kind: Literal["vllm", "sglang", "openai"] = "openai"
    """The kind of server. vLLM and SGLang return exact token ids. Without token ids, turns are kept but not trained."""
    model: str | None = None
    """Model name to request from it. Unset: the first model that it lists."""
    api_key: str | None = None
    """API key of the upstream server. Unset: `CLAWCTL_UPSTREAM_KEY`, else no key."""

    @model_validator(mode="after")
    def _pool(self) -> "UpstreamConfig":
        if self.others and self.kind != "vllm":
            raise PydanticCustomError("pool_of_vllm", "several servers need kind: vllm (--upstream-kind vllm)")
        if len({self.url, *self.others}) <= len(self.others):
            raise PydanticCustomError("pool_of_one", "each server of a pool is named once")
        return self


class TemperatureConfig(Section):
    at_least: float | None = Field(None, ge=0, le=100)
    """Lower temperatures are raised to this value."""
    always: float | None = Field(None, ge=0, le=100)
    """This temperature replaces the one that the client requests."""

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
    """`{at_least: 0.7}` or `{always: 1.0}`. Unset: the client's temperature is used."""
    ignore: list[Ignorable] | Literal["all"] | None = None
    """Request settings that the server ignores: `[top_p, top_k]`, or `all`. Turns sampled with any of them except `seed` cannot be
    trained. Unset: none are ignored."""


class SamplingConfig(SamplingRule):
    per_client: dict[str, SamplingRule] = {}
    """Rules for single clients, each with `temperature` and `ignore`: `{aider: {temperature: {at_least: 0.7}}}`. The name is a
    known client (see docs/clients.md) or the beginning of the client's `User-Agent`. Settings that a rule omits come from the
    general rule (`serve.sampling.temperature`, `serve.sampling.ignore`)."""
    per_key: dict[str, SamplingRule] = {}
    """Rules for single API keys, by the key's name: `{ci: {temperature: {always: 1.0}}}`. They take precedence over rules for
    clients."""


class ServeConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on. The default accepts connections from this machine only, because conversations are private. Other
    systems use 0.0.0.0."""
    port: int = Field(30000, ge=0, le=65535)
    """Port to listen on. With 0, the system assigns a free port, which is written to `RUN/serve.json`."""
    allowed_hosts: list[str] = []
    """Host names for which requests without a key are answered, besides `localhost` and `host`: `["claw.example.com"]`,
    `["*.lan"]`. Requests to an IP address are always answered. `["*"]` allows every name, including one that a web page points at
    this server."""
    cors_origins: list[Origin] = []
    """Origins of web pages that may read this server's answers: `["https://app.example.com"]`. Like every client, a page needs an
    API key. `["*"]` allows every page; without a valid key a page can still read nothing."""
    api_key: str | None = None
    """API key that clients must send. Unset: clawctl creates a key, shows it once and stores it in `RUN/api_key` (mode 0600), where
    the other stages read it."""
    engine: str = "transformers"
    """The engine that runs the model: `transformers`, `vllm`, your own `file.py:start`, or an engine of an installed package. The
    first two run in a child process that clawctl starts. If `transformers` dies, serve ends with it; `vllm` is restarted."""
    engine_args: list[str] = []
    """Additional command-line arguments for vLLM's server: `["--max-model-len", "32768"]`."""
    engine_python: str | None = None
    """Python interpreter of the environment that has vLLM. Unset: the interpreter that runs clawctl."""
    upstream: UpstreamConfig | None = None
    """Use a server that is already running instead of an engine that clawctl starts."""
    temperature: float | None = Field(None, ge=0)
    """Temperature of requests that set none. Unset: the one in the model's `generation_config.json`, else 1."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Top-p of requests that set none. Unset: 1, whatever the model's `generation_config.json` says. With a value below 1, turns
    are kept but not trained, because their logprobs are not the policy's."""
    sampling: SamplingConfig = SamplingConfig()
    """Changes to the sampling settings of requests. Some clients always send temperature 0, and turns sampled at temperature 0
    cannot be trained. The answer's `X-Clawctl-Sampling` header lists every change, and `/health` counts them."""
    notes: Literal["off", "prompt"] = "prompt"
    """Add a key's notes (`RUN/notes/KEY/`) to its requests, so that a wish holds from the next answer. A request with the header
    `X-Notes: off` gets none."""
    notes_chars: int = Field(2000, ge=0)
    """Characters of notes in one prompt. Notes that name a word of the request come first, then the newest ones."""
    max_tokens: int | None = Field(None, gt=0)
    """Maximum number of tokens in an answer if the request sets no limit. Unset: the rest of the context. Set it if the model may
    not stop by itself, or if an upstream requires a limit."""
    splice: bool = False
    """Put earlier answers into the prompt exactly as they were sampled, even if the client returns them changed (white space, tool
    arguments, missing reasoning). This changes what the model sees. Among upstreams, only vLLM supports it."""
    pinned_versions: int = Field(2, ge=1)
    """Maximum number of versions besides the live one (`NAME@3`) that stay loaded."""
    patches: bool = True
    """In the embedded engine, replace some functions of transformers and PyTorch by faster ones with the same results
    (docs/engines.md lists them). Turn it off to find out whether they cause a problem."""
    gpus: GpuNumbers | None = None
    """GPUs of this machine that the server may use, by number. Unset: all."""
    kv_cache_tokens: int = Field(131072, gt=0)
    """Size of the engine's KV cache in tokens, for all running requests together."""
    max_batch_tokens: int = Field(2048, gt=0)
    """Maximum number of tokens computed in one engine step. Longer prompts are split across several steps."""
    threads: PositiveInt | None = None
    """CPU threads of the engine. Unset: PyTorch decides."""
    limits: LimitsConfig = LimitsConfig()
    """Limits on client requests."""
    drain_s: float = Field(120.0, ge=0)
    """Seconds that running requests have to finish after SIGTERM. After that, they are ended and captured as cancelled."""
    sleep: Hours | None = None
    """Hours of the day (`"01:00-06:00"`, local time) in which the engine sleeps while nobody asks anything, so that vLLM leaves its
    memory on a GPU to training. The first request wakes it, and waits until it is awake. Unset: never."""
    sleep_idle_s: float = Field(60.0, ge=0)
    """Seconds without a request before the engine sleeps."""
    drain_notice_s: float = Field(0.0, ge=0)
    """Seconds after SIGTERM in which the server still accepts requests while `/health/ready` returns 503. This lets a load balancer
    notice."""
