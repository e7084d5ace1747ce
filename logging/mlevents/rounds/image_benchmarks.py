"""Image benchmarks: what each requires beyond the keys of every log, in the form of the first round that has it.

Source of keys and values: open_<benchmark>.yaml and closed_<benchmark>.yaml of mlperf-logging 4.1.68; of runs: its
benchmark_meta.py; of evaluation intervals: training_rules.adoc, section "Quality measure".
"""

from typing import Final

from mlevents import keys
from mlevents.rounds import constraint
from mlevents.rounds.constraint import NOT_NEGATIVE, POSITIVE, Constraint, is_whole, parts, related, within
from mlevents.rounds.required import RequiredKey, adamw, evaluation, fixed, named, once, once_each
from mlevents.rounds.ruleset import LOSS_BY_SAMPLES, BenchmarkRules, EvaluationInterval, PartTarget, Unit, task

OPEN_KEYS: Final = (evaluation(within(below=1.0)),)  # an open accuracy must only not be in percent
# The list of required tensors is left to MLCommons' checker.
WEIGHTS: Final = RequiredKey(key=keys.WEIGHTS_INITIALIZATION, occurrence="at least one", metadata=("tensor",))

# Target: training_rules.adoc, table of benchmarks: 75.90 % classification
RESNET: Final = task(keys.RESNET, "imagenet", "top-1 accuracy", 0.759, runs=5)(
    unit="epoch",  # training_rules.adoc, epoch reporting
    evaluation_interval=EvaluationInterval(constant=4),  # every 4 epochs, first one free between 0 and 3
    # MosaicML's logs have 1,281,168; some of v3.1 and v4.0 have 49,999.
    samples={keys.TRAIN_SAMPLES: (1_281_167, 1_281_168), keys.EVAL_SAMPLES: (49_999, 50_000)},
    # 4.089e9 multiply-adds forward at 224 pixels (torchvision's weights of ResNet-50 v1.5), twice that backward.
    training_flop=1_281_167 * 3 * 2 * 4.089e9,
    open_keys=OPEN_KEYS,
    closed_keys=(
        WEIGHTS,
        once(keys.GLOBAL_BATCH_SIZE, POSITIVE),
        named(keys.OPT_NAME, "sgd", "lars"),
        evaluation(within(least=0.759, below=1.0)),
    ),
    # closed_resnet_lars.yaml and closed_resnet_sgd.yaml. mlperf-logging has no constants for the sgd_ names.
    closed_optimizer_keys={
        "lars": (
            once("lars_opt_base_learning_rate"),
            *fixed(lars_opt_end_learning_rate=0.0001, lars_opt_learning_rate_decay_poly_power=2),
            once(keys.LARS_OPT_LR_DECAY_STEPS),
            *fixed(lars_epsilon=0.0),
            *once_each("lars_opt_learning_rate_warmup_epochs", "lars_opt_momentum"),
            once("lars_opt_weight_decay", constraint.power_of_two_times(0.0001)),
        ),
        "sgd": (
            once("sgd_opt_base_learning_rate", constraint.multiple_of(0.001)),
            *fixed(sgd_opt_end_learning_rate=0.0001),
            *once_each("sgd_opt_learning_rate_decay_poly_power", "sgd_opt_learning_rate_decay_steps"),
            once("sgd_opt_weight_decay", constraint.power_of_two_times(0.0001)),
            *once_each("sgd_opt_momentum", keys.MODEL_BN_SPAN, keys.OPT_LR_WARMUP_EPOCHS),
        ),
    },
)

# RetinaNet on Open Images in all these rounds; from 5.0 on under that name.
SSD: Final = task("ssd", "openimages", "mean average precision", 0.340, runs=5)(
    evaluation_interval=EvaluationInterval(constant=1),  # "SSD (RetinaNet): every 1 epoch"
    open_keys=OPEN_KEYS,
    closed_keys=(
        WEIGHTS,
        once(keys.GLOBAL_BATCH_SIZE),
        named(keys.OPT_NAME, "adam"),
        once(keys.OPT_BASE_LR, NOT_NEGATIVE),
        *fixed(opt_weight_decay=0.0),
        *once_each(keys.OPT_LR_WARMUP_EPOCHS, "opt_learning_rate_warmup_factor", value=(NOT_NEGATIVE,)),
        evaluation(within(least=0.340, below=1.0)),
    ),
)

_BOX_AND_MASK: Final = (parts(BBOX=within(), SEGM=within()),)

MASKRCNN: Final = task("maskrcnn", "coco", "box average precision", 0.377, runs=5)(
    parts={"BBOX": PartTarget(target=0.377, direction=">="), "SEGM": PartTarget(target=0.339, direction=">=")},
    evaluation_interval=EvaluationInterval(constant=1),
    open_keys=(evaluation(parts(BBOX=within(below=1.0), SEGM=within(below=1.0)), value=_BOX_AND_MASK),),
    closed_keys=(
        WEIGHTS,
        once(keys.GLOBAL_BATCH_SIZE, POSITIVE),
        once(
            keys.OPT_BASE_LR,
            related(
                "a whole multiple of 0.02, or 0.02 / k below a batch of 16",
                (keys.GLOBAL_BATCH_SIZE,),
                lambda rate, batch: is_whole(rate / 0.02) or (batch < 16 and is_whole(0.02 / rate)),
            ),
        ),
        once(keys.OPT_LR_WARMUP_STEPS, NOT_NEGATIVE),
        once("opt_learning_rate_warmup_factor", POSITIVE),
        once("num_image_candidates", constraint.multiple_of(1000.0)),
        *fixed(opt_learning_rate_decay_factor=0.1),
        once(keys.OPT_LR_DECAY_STEPS, Constraint("a list of 2", lambda value, _: len(value) == 2)),
        *once_each("min_image_size", "max_image_size", value=(NOT_NEGATIVE,)),
        evaluation(
            parts(BBOX=within(least=0.377, below=1.0), SEGM=within(least=0.339, below=1.0)), value=_BOX_AND_MASK
        ),
    ),
)

UNET3D: Final = task("unet3d", "kits19", "mean Dice score", 0.908, runs=40)(
    dropped=4,  # result_summarizer.py, max_dropped_scores
    # From CEILING(1000 * 168 / samples_per_epoch) epochs on every CEILING(20 * 168 / samples_per_epoch) epochs, where
    # the last batch of an epoch is padded.
    evaluation_interval=EvaluationInterval(constant=20, padded_epoch=168),
    samples={keys.TRAIN_SAMPLES: (168, 168), keys.EVAL_SAMPLES: (42, 42)},
    open_keys=OPEN_KEYS,
    closed_keys=(
        WEIGHTS,
        *once_each(keys.GLOBAL_BATCH_SIZE, keys.OPT_NAME, keys.OPT_BASE_LR),
        once(keys.OPT_LR_WARMUP_EPOCHS, NOT_NEGATIVE),
        *once_each("opt_learning_rate_decay_boundary_epochs", "opt_learning_rate_decay_factor", keys.OPT_WEIGHT_DECAY),
        *fixed(train_samples=168, eval_samples=42),
        evaluation(within(least=0.908)),
        *once_each(keys.SEED, "opt_momentum", "oversampling"),
        *once_each("training_input_shape", "validation_input_shape", "validation_overlap"),
    ),
)


def stable_diffusion(unit: Unit, progress: str) -> BenchmarkRules:
    """Return the rules of Stable Diffusion, whose two metrics are an eval_accuracy each, joined by equal `progress`."""

    def fid_and_clip(fid: Constraint, clip: Constraint) -> RequiredKey:
        return RequiredKey(
            key="aggregated_eval_accuracy",  # name of the joined value in the rule files
            occurrence="at least two",
            joined=progress,
            value=(parts(FID=within(), CLIP=within()),),
            some_value=(parts(FID=fid, CLIP=clip),),
        )

    return task("stable_diffusion", "laion-400m-filtered", "FID", 90.0, runs=10)(
        direction="<=",
        parts={"FID": PartTarget(target=90.0, direction="<="), "CLIP": PartTarget(target=0.15, direction=">=")},
        parts_in_one_event=False,
        unit=unit,
        progress=progress,
        offline_evaluation=True,
        samples={keys.EVAL_SAMPLES: (30_000, 30_000)},
        open_keys=(fid_and_clip(within(least=0.0), within(most=1.0)),),
        closed_keys=(
            RequiredKey(key=keys.GLOBAL_BATCH_SIZE, occurrence="at least one", value=(NOT_NEGATIVE,)),
            named(keys.OPT_NAME, "adamw"),
            *adamw(0.999, 1e-8, 0.01),
            *once_each(keys.OPT_BASE_LR, keys.OPT_LR_WARMUP_STEPS, value=(NOT_NEGATIVE,)),
            fid_and_clip(within(least=0.0, most=90.0), within(least=0.15, most=1.0)),
        ),
    )


_FLUX_TARGET: Final = within(above=0.0, most=0.586)

FLUX1: Final = task("flux1", "cc12m", "validation loss", 0.586, runs=10)(
    **LOSS_BY_SAMPLES,
    # "Every 262144 training samples", rounded up to whole batches (training_policies pull request 562).
    evaluation_interval=EvaluationInterval(constant=262_144, whole_batches=True),
    # The open rule file requires a key of its own, unknown to the closed one and the reference.
    open_keys=(
        RequiredKey(
            key="averaged_validation_loss",
            occurrence="at least one",
            metadata=(keys.SAMPLES_COUNT,),
            some_value=(_FLUX_TARGET,),
        ),
    ),
    closed_keys=(
        RequiredKey(key=keys.GLOBAL_BATCH_SIZE, occurrence="at least one", value=(NOT_NEGATIVE,)),
        *fixed(evaluation_frequency=262_144),  # from 6.1 on rounded up to whole batches, as in the rules
        named(keys.OPT_NAME, "adamw"),
        *adamw(0.95, 1e-8, 0.1),
        *once_each(keys.OPT_BASE_LR, keys.OPT_LR_WARMUP_STEPS, value=(NOT_NEGATIVE,)),
        *fixed(opt_gradient_clip_norm=1.0),
        evaluation(_FLUX_TARGET, progress=keys.SAMPLES_COUNT),
    ),
)
