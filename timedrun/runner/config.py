"""Settings of a run: frozen dataclasses, command-line overrides, a canonical dump and its digest."""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import cattrs
import cattrs.v
import tyro
from cattrs.gen import make_dict_unstructure_fn

from judging.ground.config_values import digest_of, flatten
from judging.ground.errors import TimedrunError, UsageError
from timedrun.methods import Method
from timedrun.methods.method import LATER as LATER
from timedrun.methods.training.optim import OptimizerConfig as OptimizerConfig
from timedrun.methods.training.schedule import Schedule
from timedrun.runner.method_reference import recorded, reference_of, take_class

Split = Literal["own", "tuning"]
"""own: train and evaluate on the data as it is. tuning: a part of the training data is evaluated on and not trained on;
the evaluation data, on which a race is decided, is not read."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Schedule of evaluations, in the benchmark's unit (epochs or samples), and the target that ends the run."""

    target: float
    every: int = 1
    first: int = 1
    """First evaluation; the end of the run is always evaluated."""


@dataclass(frozen=True, kw_only=True)
class SubmissionConfig:
    """Submitter and system, as the log and the system description state them."""

    organization: str = "unaffiliated"
    division: Literal["open", "closed"] = "open"
    status: Literal["cloud", "onprem", "preview", "research"] = "research"
    platform: str = ""
    """System id; empty: derived from the machine and the config's name."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Frozen settings that every benchmark's config has. A config holds no run-time object."""

    benchmark: Annotated[str, tyro.conf.Fixed]
    name: str
    notes: str = ""
    """Origin of the numbers."""
    dataset: str
    seed: int = 1
    global_batch: int
    """Samples in one optimizer step over all ranks."""
    micro_batch: int = 0
    """At most this many samples in one forward pass of a rank; 0: the whole local batch."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA if torch sees a device, else the CPU."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    emulation: Literal["refuse", "allow"] = field(default="refuse", metadata=LATER)
    """On a CPU without instructions for `precision`, where a step takes 10 to 90 times as long as in fp32."""
    tf32: bool = True
    """CUDA: TF32 for float32 matrix products and convolutions; without effect on what autocast runs in 16 bits."""
    cudnn_benchmark: bool = False
    """CUDA: time cuDNN's algorithms at each new shape and keep the fastest, which may round differently in each run."""
    keep_model: bool = field(default=False, metadata=LATER)
    """Keep the evaluated weights of a run that ends with its schedule or at its target, after the clock."""
    compile: bool = False
    """torch.compile the model during warm-up, before the clock."""
    recompile: Literal["error", "log"] = "error"
    """If torch.compile would compile a function again on the clock, for a shape that the warm-up did not have. error:
    abort the run, unless a method changes the graph (layer_freezing) or there was no warm-up; log: compile, and log."""
    warm_up_steps: int = 2
    """Steps on synthetic data before the clock, at each input size of the run."""
    clear_cache: bool = False
    """Drop the operating system's page cache before the run (needs root); if false, the log says that it was not."""
    budget_minutes: float = 0.0
    """Stop after this many minutes on the clock; 0: no limit."""
    optimizer: OptimizerConfig
    evaluation: EvaluationConfig
    submission: SubmissionConfig = field(default_factory=SubmissionConfig)
    methods: tuple[Method, ...] = ()

    def stretched(self, ratio: float) -> Self:
        """Return this config with a schedule `ratio` times as long, which ends the run and is evaluated at its end.

        Raises UsageError if that leaves no schedule, or if the benchmark does not define it.
        """
        raise UsageError(
            f"benchmark {self.benchmark} cannot be swept: its RunConfig does not define `stretched(ratio)`, the config"
            " with another length."
        )

    def epoch_steps(self, train_samples: int) -> int:
        """Return the optimizer steps of an epoch, at least 1: of whole batches, unless the benchmark defines it."""
        return max(1, train_samples // self.global_batch)

    def lengthened(self, ratio: float, evaluated: float = 1.0) -> Self:
        """Return this config with a schedule `ratio` times as long, evaluated as often as before, from `evaluated`
        times the same part of the schedule on. Raises what `stretched` raises."""
        first = max(1, round(self.evaluation.first * ratio * evaluated))
        longest: dict[str, Any] = {"max_epochs": value} if (value := getattr(self, "max_epochs", 0)) else {}
        return replace(self.stretched(ratio), evaluation=replace(self.evaluation, first=first), **longest)

    def for_tuning(self) -> Self:
        """Return this config on the tuning split of its data. Raises UsageError if the benchmark has none."""
        data: Any = getattr(self, "data", None)
        if getattr(data, "split", None) != "own":
            raise UsageError(
                f"benchmark {self.benchmark} has no tuning split, and what decides a race must not choose settings, so"
                " nothing was run; its config's `data` needs a field `split` (docs/tune.md)."
            )
        changed: dict[str, Any] = {"data": replace(data, split="tuning")}
        return replace(self, dataset=f"{self.dataset}_tuning", **changed)

    def search_space(self) -> dict[str, tuple[float, float]]:
        """Return the ranges in which `timedrun tune` looks for settings, by dotted name, around this config's own;
        "length" and "first_evaluation" are the ratios of `lengthened`."""
        lr, decay, batch = self.optimizer.peak_lr, self.optimizer.weight_decay, self.global_batch
        ranges = {"optimizer.peak_lr": (lr / 4, lr * 4), "length": (0.5, 2.0), "global_batch": (batch // 2, batch * 2)}
        ranges["first_evaluation"] = (0.5, 1.25)
        return ranges | ({"optimizer.weight_decay": (decay / 8, decay * 8)} if decay else {})

    def equivalents(self) -> list[str]:
        """Return changes, as `timedrun auto --try` takes them, that leave the mathematics of a run as it is and may be
        faster on this machine, each after those that it needs; of several for one setting, the likely best last."""
        return [] if self.compile else ["compile true"]

    def with_recipe(self, epochs: int = 0, overrides: Sequence[str] = ()) -> Self:
        """Return this config with the published recipe for its data, with `overrides`, at `epochs`; 0: its own.

        Raises UsageError if there is none.
        """
        raise UsageError(
            f"there is no published recipe for {self.dataset} with {self.benchmark}, so -O2 has nothing to apply; give"
            " -O1 a config with methods, and judge it by `timedrun race`."
        )

    @classmethod
    def upgraded(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a config of results/, whose digest is in its logs, with today's names and values."""
        optimizer = values.get("optimizer")
        if isinstance(optimizer, dict) and optimizer.get("kind") == "muon" and "neuron_beta2" not in optimizer:
            return {**values, "optimizer": {**optimizer, "nesterov": True}}  # ignored by Muon before it had this field
        return values


@dataclass(frozen=True, kw_only=True)
class EpochRunConfig(RunConfig):
    """Settings of a run that counts epochs."""

    schedule: Schedule
    max_epochs: int = 0
    """Maximum length of the run; 0: that of its schedule. After the schedule the rate stays at its final factor."""

    @property
    def total_epochs(self) -> int:
        return self.max_epochs or self.schedule.epochs_scaled

    def stretched(self, ratio: float) -> Self:
        try:
            schedule = replace(self.schedule, scale=self.schedule.scale * ratio)
        except ValueError as error:
            raise UsageError(f"{self.name} at {ratio:g} of its schedule: {error}.") from None
        end = replace(self.evaluation, every=schedule.epochs_scaled, first=schedule.epochs_scaled)
        return replace(self, schedule=schedule, max_epochs=0, evaluation=end)


Config = TypeVar("Config", bound=RunConfig)

_converter = cattrs.Converter(forbid_extra_keys=True)


def _rules(kind: Any) -> dict[str, Any]:
    return {
        item.name: cattrs.override(omit_if_default=True)
        for item in dataclasses.fields(kind)
        if "later" in item.metadata
    }


def _values(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """Return a function that dumps an object of `kind`, a method with the entries that name it."""
    values: Callable[[Any], dict[str, Any]] = make_dict_unstructure_fn(kind, _converter, **_rules(kind))
    return (lambda method: {**recorded(method), **values(method)}) if issubclass(kind, Method) else values


_converter.register_unstructure_hook_factory(
    lambda kind: dataclasses.is_dataclass(kind) and (issubclass(kind, Method) or bool(_rules(kind))),  # type: ignore[arg-type]
    _values,
)
_converter.register_structure_hook_func(lambda kind: kind is Method, lambda values, _: _method(values))


def _strict(*accepted: type) -> Callable[[Any, type], Any]:
    """Return a hook that converts a value only if its JSON type is in `accepted`: no "false" for a switch, say."""

    def structure(value: Any, kind: type) -> Any:
        if type(value) not in accepted:
            raise TypeError(f"{value!r} is not of type {kind.__name__}")
        return kind(value)

    return structure


for _kind, _accepted in {bool: (bool,), int: (int,), float: (float, int), str: (str,)}.items():
    _converter.register_structure_hook(_kind, _strict(*_accepted))


def _method(values: Any) -> Method:
    given = dict(values) if isinstance(values, dict) else {"method": values}
    return _converter.structure(given, take_class(given))


def method_of(values: dict[str, Any]) -> Method:
    """Return the method of a config's entry such as `{"method": "ema", "half_life": 8}`; raise UsageError if there is
    none of this name with these fields."""
    try:
        return _method(values)
    except cattrs.BaseValidationError as error:
        raise UsageError(f"method {values['method']}: {_faults(error)}.") from None


def _faults(error: cattrs.BaseValidationError) -> str:
    """Return every fault with its place, in our own words where there are some."""

    def words(fault: BaseException, kind: Any) -> str:
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if get_origin(kind) is Literal:
            return f"not one of {', '.join(map(str, get_args(kind)))}"
        own = isinstance(fault, TimedrunError | ValueError | TypeError)
        return str(fault) if own else cattrs.v.format_exception(fault, kind)

    return "; ".join(text.removesuffix(" @ $") for text in cattrs.transform_error(error, format_exception=words))


def dump(config: RunConfig) -> dict[str, Any]:
    """Return all settings of `config` as plain JSON values."""
    return plain(load(type(config), plain(config)))  # loading makes a 1 given for a float 1.0


def plain(config: RunConfig) -> dict[str, Any]:
    """Return `dump(config)` without checking or converting types."""
    values: dict[str, Any] = _converter.unstructure(config)
    values["methods"] = [_converter.unstructure(method) for method in config.methods]
    return json.loads(json.dumps(values))  # type: ignore[no-any-return]  # tuples become lists, as a reader sees them


def load(kind: type[Config], values: dict[str, Any], source: str = "the config") -> Config:
    """Return the config that `dump` wrote as `values`; raise UsageError, which names each unknown key, missing key and
    value of another JSON type."""
    if not isinstance(values.get("methods", []), list):
        form = '"methods": [{"method": "ema", "half_life": 50}, ...]'
        raise UsageError(f"{source} is not a valid {kind.__name__}: methods is not a list; write {form}.")
    try:
        return _converter.structure(kind.upgraded(values), kind)
    except cattrs.BaseValidationError as error:
        raise UsageError(f"{source} is not a valid {kind.__name__}: {_faults(error)}") from None


def digest(config: RunConfig) -> str:
    """Return the `digest_of` the canonical dump."""
    return digest_of(dump(config))


def override(config: Config, arguments: Sequence[str], *, prog: str = "") -> Config:
    """Return `config` with command-line overrides such as `--optimizer.peak-lr 8.5 --methods.ema.half-life 50`.

    Raises:
        SystemExit: 2, from tyro, which prints the unknown option and the nearest one; notes: what is no setting.
    """
    if not arguments:
        return config
    if len(arguments) == 2 and arguments[0] == "--seed" and arguments[1].isdecimal() and isinstance(config, RunConfig):
        return replace(config, seed=int(arguments[1]))  # as in each run of a race: tyro takes a fifth of a second
    known = {f"--{name}".replace("_", "-"): value for name, value in flatten(plain(config)).items()}
    words: list[str] = []
    for word in arguments:  # "--compile false", as `show` prints it, is tyro's "--no-compile"
        if word in ("true", "false") and words and isinstance(known.get(words[-1].replace("_", "-")), bool):
            head, dot, name = words[-1][2:].rpartition(".")
            words[-1] = words[-1] if word == "true" else f"--{head}{dot}no-{name}"
        else:
            words.append(word)
    # One flag group for each method by name: tyro would address members of a tuple by position.
    groups = [
        (f"method_{at}", Annotated[type(m), tyro.conf.arg(name=reference_of(type(m)))], field(default=m))
        for at, m in enumerate(config.methods)
    ]
    methods = make_dataclass("methods", groups, frozen=True)
    rest = replace(config, methods=())
    everything = make_dataclass(
        "everything",
        [
            ("config", Annotated[type(config), tyro.conf.arg(name="")], field(default=rest)),
            ("methods", methods, field(default=methods())),
        ],
        frozen=True,
    )
    about = f"Settings of {config.name}; `timedrun {' '.join(prog.split()[1:2])} --help` lists the other options."
    try:
        parsed: Any = tyro.cli(
            everything, args=words, prog=prog or None, description=about, config=(tyro.conf.SuppressFixed,)
        )
    except SystemExit as ended:
        options = (word.partition("=")[0] for word in arguments if word.startswith("--"))
        unknown = (word for word in options if re.sub(r"(--|\.)no-", r"\1", word).replace("_", "-") not in known)
        ended.__notes__ = [*unknown]
        raise
    chosen = tuple(getattr(parsed.methods, name) for name, *_ in groups)
    changed: Config = replace(parsed.config, methods=chosen)
    return changed
