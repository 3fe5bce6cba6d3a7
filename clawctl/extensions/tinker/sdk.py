"""The SDK calls that the trainer uses. They rely on the names of Tinker's SDK, which its forks share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, TypeVar
from urllib.request import urlopen

from clawctl.config import Recipe, TrainConfig
from clawctl.config.environment import tinker_url
from clawctl.errors import ClawError
from clawctl.extensions.tinker.adapter import members_of
from clawctl.extensions.tinker.patience import patient
from clawctl.extensions.tinker.sequences import LOSS, TokenSequence

T = TypeVar("T")

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"  # that of the SDK, in tinker 0.22.7
_DOWNLOAD_S = 600.0
_SKYRL = "skyrl.ai/"  # prefix of its metrics' names


class Service:
    """A connection to a service, for one base model. A service whose SDK differs from Tinker's is a subclass."""

    name = "Tinker"

    def __init__(self, recipe: Recipe) -> None:
        """Raises ClawError if the service does not answer or does not offer the base model."""
        self.recipe, self.settings = recipe, recipe.train.service
        self.base_model = self.settings.base_model or recipe.model_path
        self.sdk, errors = self.load_sdk()
        self.errors: tuple[type[Exception], ...] = (*errors, OSError, ValueError)  # a failed request is a ValueError in the SDKs
        self.url = self.address()
        self.context: int | None = None  # tokens; None: unknown
        self.client: Any = None
        self.connect()

    def load_sdk(self) -> tuple[Any, tuple[type[Exception], ...]]:
        """The module with `ServiceClient` and the types, and the errors that it raises."""
        sdk: Any = import_module("tinker")
        return sdk, (sdk.TinkerError,)

    def address(self) -> str:
        """Where the service is, also if the recipe leaves it to the SDK."""
        return self.settings.url or tinker_url() or URL

    def connect(self) -> None:
        """Open a session, and set `client` and `context`. Raises ClawError."""
        named = {"base_url": self.url, "api_key": self.settings.api_key}

        def open_session() -> Any:
            client = self.sdk.ServiceClient(**{key: value for key, value in named.items() if value is not None})
            return client, client.get_server_capabilities().supported_models

        self.client, models = self.call("connect", open_session)
        offered = {model.model_name: model for model in models}
        if self.base_model not in offered:
            raise ClawError(
                f"{self.name} does not offer the base model {self.base_model}",
                f"set train.service.base_model to one of: {', '.join(sorted(filter(None, offered)))}; models get retired",
                2,
            )
        self.context = getattr(offered[self.base_model], "max_context_length", None)

    @contextmanager
    def calls(self, what: str) -> Iterator[None]:
        """Within this context, an error of the SDK becomes a ClawError. `up` restarts the trainer, which resumes from the last
        version."""
        try:
            yield
        except self.errors as error:
            fix = "check train.service.url, the API key and the service; training resumes from the last published version"
            raise ClawError(f"{self.name} failed at {what}: {str(error)[:500]}", fix) from error

    def call(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`, within `calls`, if it comes at all. Raises ClawError."""
        with self.calls(what):
            return patient(work, f"{self.name} {what}", self.url)

    def create(self, recipe: Recipe, **more: Any) -> "RemoteAdapter":
        """A new adapter on the base model. `more` are arguments that this SDK has in addition to Tinker's."""
        lora = recipe.train.lora
        assert lora is not None
        targets = {*ATTENTION, *MLP} if isinstance(lora.targets, str) else set(lora.targets)
        parts = {"train_attn": bool(targets & ATTENTION), "train_mlp": bool(targets & MLP), "train_unembed": False}
        make, name = self.client.create_lora_training_client, "create_lora_training_client"
        return RemoteAdapter(self, self.call(name, lambda: make(self.base_model, lora.rank, recipe.train.seed, **parts, **more)))

    def restore(self, state: str, with_optimizer: bool) -> "RemoteAdapter":
        """A new adapter that starts from a saved state."""
        make = "create_training_client_from_state" + ("_with_optimizer" if with_optimizer else "")
        return RemoteAdapter(self, self.call(make, lambda: getattr(self.client, make)(state)))

    def fetch(self, path: str) -> dict[str, bytes]:
        """The files of an adapter that was saved for samplers, by name. `path` is the service's path."""
        run, _, saved = path.removeprefix("tinker://").partition("/")

        def fetched() -> dict[str, bytes]:
            return members_of(download(self.client.create_rest_client().get_checkpoint_archive_url(run, saved).result().url))

        return self.call("get_checkpoint_archive_url", fetched)

    def base_logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Logprobs of the completions by the base model, for a frozen teacher."""

        def scored() -> list[Any]:
            sampler = self.client.create_sampling_client(base_model=self.base_model)
            futures = [sampler.compute_logprobs(self.sdk.ModelInput.from_ints(sequence.ids)) for sequence in sequences]
            return [future.result() for future in futures]

        results = self.call("compute_logprobs", scored)
        return [list(values[sequence.start :]) for values, sequence in zip(results, sequences, strict=True)]


def download(url: str) -> bytes:
    """The content of a signed URL, which needs no key. Raises OSError."""
    if not url.startswith(("http://", "https://")):
        raise OSError(f"the adapter is not at a web address: {url[:100]}")
    with urlopen(url, timeout=_DOWNLOAD_S) as answer:
        return bytes(answer.read())


class RemoteAdapter:
    """One adapter in training at a service."""

    def __init__(self, service: Service, training: Any) -> None:
        self.service, self.training = service, training

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """The logprobs of each completion's tokens, with the current weights."""
        data = [self._datum(sequence, sequence.inputs()) for sequence in sequences]
        outputs = self.service.call("forward", lambda: self.training.forward(data, LOSS).result().loss_fn_outputs)
        return [sequence.completion(output["logprobs"].data) for sequence, output in zip(sequences, outputs, strict=True)]

    def likeliest(self, sequences: Sequence[TokenSequence], k: int) -> list[list[list[int]]]:
        """The K likeliest tokens at each position of each completion, with the current weights: [T][K]. Raises ClawError if the
        service does not name them."""
        sdk = self.service.sdk

        def sampled() -> list[Any]:
            sampler = self.training.save_weights_and_get_sampling_client()
            how = {"num_samples": 1, "sampling_params": sdk.SamplingParams(max_tokens=1, temperature=1.0)}
            how |= {"include_prompt_logprobs": True, "topk_prompt_logprobs": k}
            futures = [sampler.sample(prompt=sdk.ModelInput.from_ints(sequence.ids), **how) for sequence in sequences]
            return [future.result().topk_prompt_logprobs for future in futures]

        answers = self.service.call("sample", sampled)
        return [_named(self.service.name, answer, sequence, k) for answer, sequence in zip(answers, sequences, strict=True)]

    def backward(
        self, sequences: Sequence[TokenSequence], logprobs: Sequence[Sequence[float]], slopes: Sequence[Sequence[float]]
    ) -> None:
        """Add a gradient: the sum over tokens of slope * d logprob."""
        rows = zip(sequences, logprobs, slopes, strict=False)
        data = [self._datum(sequence, sequence.inputs(values, slope)) for sequence, values, slope in rows]
        self.service.call("forward_backward", lambda: self.training.forward_backward(data, LOSS).result())

    def update(self, config: TrainConfig, lr: float, loss: Literal["sum", "mean"]) -> float | None:
        """Apply AdamW. Returns the norm of the gradient, or None if the service does not report it. Raises ClawError if the service
        is known to reduce losses differently than `loss`."""
        adam = self.service.sdk.AdamParams(
            learning_rate=lr,
            beta1=config.betas[0],
            beta2=config.betas[1],
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.clip_grad,
        )
        metrics = self.service.call("optim_step", lambda: self.training.optim_step(adam).result().metrics or {})
        if loss == "sum" and any(name.startswith(_SKYRL) for name in metrics):
            raise ClawError("this service is SkyRL, which takes means of the loss", "set train.service.loss: mean", 2)
        return next((float(value) for name, value in metrics.items() if name.endswith("grad_norm")), None)

    def save_state(self, name: str) -> str:
        """Save weights and optimizer. Returns the path for `Service.restore`."""
        return str(self.service.call("save_state", lambda: self.training.save_state(name).result().path))

    def download(self, name: str) -> dict[str, bytes]:
        """Save the adapter for samplers and download its files."""
        path = str(
            self.service.call("save_weights_for_sampler", lambda: self.training.save_weights_for_sampler(name).result().path)
        )
        return self.service.fetch(path)

    def _datum(self, sequence: TokenSequence, inputs: dict[str, Any]) -> Any:
        sdk = self.service.sdk
        return sdk.Datum(model_input=sdk.ModelInput.from_ints(sequence.ids[:-1]), loss_fn_inputs=inputs)


_Likely = Sequence[Sequence[tuple[int, float]] | None]  # by position of a sequence: tokens and logprobs


def _named(service: str, rows: _Likely | None, sequence: TokenSequence, k: int) -> list[list[int]]:
    """The K likeliest tokens at each position of a completion. Services fill empty places with a logprob of -99999."""
    likeliest_T = [] if rows is None else rows[sequence.start :]
    likely = [sorted((-logprob, token) for token, logprob in row or () if logprob > -9999.0)[:k] for row in likeliest_T]
    if len(likeliest_T) != len(sequence.ids) - sequence.start or any(len(row) < k for row in likely):
        raise ClawError(
            f"{service} does not name the {k} likeliest tokens (topk_prompt_logprobs), which this method compares",
            "use --method opd or combine without train.topk, or --backend local",
            2,
        )
    return [[token for _, token in row] for row in likely]
