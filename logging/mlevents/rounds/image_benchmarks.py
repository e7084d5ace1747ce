"""Image benchmarks: what each requires beyond the keys of every log, in the form of the first round that has it.

Source of keys and values: open_<benchmark>.yaml and closed_<benchmark>.yaml of mlperf-logging 4.1.68; of runs: its
benchmark_meta.py; of evaluation intervals: training_rules.adoc, section "Quality measure".
"""

from typing import Final

from mlevents import keys
from mlevents.rounds.constraint import (
    Constraint,
    among,
    equal,
    is_whole,
    length,
    multiple_of,
    parts,
    power_of_two_times,
    related,
    within,
)
from mlevents.rounds.ruleset import (
    BenchmarkRules,
    EvaluationInterval,
    PartTarget,
    RequiredKey,
    evaluation,
    named,
    once,
    once_each,
)

POSITIVE: Final = within(above=0)
NOT_NEGATIVE: Final = within(least=0)
OPEN_KEYS: Final = (evaluation(within(below=1.0)),)  # an open accuracy must only not be in percent
# The list of required tensors is left to MLCommons' checker.
WEIGHTS: Final = RequiredKey(key=keys.WEIGHTS_INITIALIZATION, occurrence="at least one", metadata=("tensor",))

RESNET: Final = BenchmarkRules(
    name=keys.RESNET,
    dataset="imagenet",
    metric="top-1 accuracy",
    target=0.759,  # training_rules.adoc, table of benchmarks: 75.90 % classification
    runs=5,
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
            once(keys.LARS_OPT_BASE_LEARNING_RATE),
            once(keys.LARS_OPT_END_LR, equal(0.0001)),
            once(keys.LARS_OPT_LR_DECAY_POLY_POWER, equal(2)),
            once(keys.LARS_OPT_LR_DECAY_STEPS),
            once(keys.LARS_EPSILON, equal(0.0)),
            once(keys.LARS_OPT_LEARNING_RATE_WARMUP_EPOCHS),
            once(keys.LARS_OPT_MOMENTUM),
            once(keys.LARS_OPT_WEIGHT_DECAY, power_of_two_times(0.0001)),
        ),
        "sgd": (
            once("sgd_opt_base_learning_rate", multiple_of(0.001)),
            once("sgd_opt_end_learning_rate", equal(0.0001)),
            *once_each("sgd_opt_learning_rate_decay_poly_power", "sgd_opt_learning_rate_decay_steps"),
            once("sgd_opt_weight_decay", power_of_two_times(0.0001)),
            *once_each("sgd_opt_momentum", keys.MODEL_BN_SPAN, keys.OPT_LR_WARMUP_EPOCHS),
        ),
    },
)

# RetinaNet on Open Images in all these rounds; from 5.0 on under that name.
SSD: Final = BenchmarkRules(
    name="ssd",
    dataset="openimages",
    metric="mean average precision",
    target=0.340,
    runs=5,
    evaluation_interval=EvaluationInterval(constant=1),  # "SSD (RetinaNet): every 1 epoch"
    open_keys=OPEN_KEYS,
    closed_keys=(
        WEIGHTS,
        once(keys.GLOBAL_BATCH_SIZE),
        named(keys.OPT_NAME, "adam"),
        once(keys.OPT_BASE_LR, NOT_NEGATIVE),
        once(keys.OPT_WEIGHT_DECAY, equal(0.0)),
        once(keys.OPT_LR_WARMUP_EPOCHS, NOT_NEGATIVE),
        once("opt_learning_rate_warmup_factor", NOT_NEGATIVE),
        evaluation(within(least=0.340, below=1.0)),
    ),
)

# SSD-ResNet34 on COCO, until v1.1.
SSD_COCO: Final = BenchmarkRules(
    name="ssd",
    dataset="coco",
    metric="mean average precision",
    target=0.230,
    runs=5,
    evaluation_interval=EvaluationInterval(constant=5),
    open_keys=OPEN_KEYS,
    closed_keys=(
        once(keys.GLOBAL_BATCH_SIZE),
        *once_each(keys.OPT_BASE_LR, keys.OPT_WEIGHT_DECAY),
        once(keys.MODEL_BN_SPAN, within(least=1)),
        once(keys.OPT_LR_WARMUP_STEPS, within(least=1)),
        once("opt_learning_rate_warmup_factor", NOT_NEGATIVE),
        once("max_samples", among(1, 50)),
        # The rule file checks 40 and 50 times whole tenths, of which its reader keeps the last only.
        once(
            "opt_learning_rate_decay_boundary_epochs",
            Constraint("a list with a whole multiple of 5 as its second", lambda value, _: is_whole(value[1] / 5)),
        ),
        evaluation(within(least=0.230, below=1.0)),
    ),
)


_BOX_AND_MASK: Final = (parts(BBOX=within(), SEGM=within()),)

MASKRCNN: Final = BenchmarkRules(
    name="maskrcnn",
    dataset="coco",
    metric="box average precision",
    target=0.377,
    parts={"BBOX": PartTarget(target=0.377, direction=">="), "SEGM": PartTarget(target=0.339, direction=">=")},
    runs=5,
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
        once("num_image_candidates", multiple_of(1000.0)),
        once("opt_learning_rate_decay_factor", equal(0.1)),
        once(keys.OPT_LR_DECAY_STEPS, length(2)),
        once("min_image_size", NOT_NEGATIVE),
        once("max_image_size", NOT_NEGATIVE),
        evaluation(
            parts(BBOX=within(least=0.377, below=1.0), SEGM=within(least=0.339, below=1.0)), value=_BOX_AND_MASK
        ),
    ),
)

UNET3D: Final = BenchmarkRules(
    name="unet3d",
    dataset="kits19",
    metric="mean Dice score",
    target=0.908,
    runs=40,
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
        once(keys.TRAIN_SAMPLES, equal(168)),
        once(keys.EVAL_SAMPLES, equal(42)),
        evaluation(within(least=0.908)),
        *once_each(keys.SEED, "opt_momentum", "oversampling"),
        *once_each("training_input_shape", "validation_input_shape", "validation_overlap"),
    ),
)


def fid_and_clip(progress: str, fid: Constraint, clip: Constraint) -> RequiredKey:
    """Return the rule for Stable Diffusion's metrics, each in its own eval_accuracy, joined by equal `progress`."""
    return RequiredKey(
        key="aggregated_eval_accuracy",  # name of the joined value in the rule files
        occurrence="at least two",
        joined=progress,
        value=(parts(FID=within(), CLIP=within()),),
        some_value=(parts(FID=fid, CLIP=clip),),
    )


OPEN_FID_AND_CLIP: Final = (within(least=0.0), within(most=1.0))
CLOSED_FID_AND_CLIP: Final = (within(least=0.0, most=90.0), within(least=0.15, most=1.0))

STABLE_DIFFUSION: Final = BenchmarkRules(
    name="stable_diffusion",
    dataset="laion-400m-filtered",
    metric="FID",
    target=90.0,
    direction="<=",
    parts={"FID": PartTarget(target=90.0, direction="<="), "CLIP": PartTarget(target=0.15, direction=">=")},
    parts_in_one_event=False,
    runs=10,
    unit="steps",
    progress=keys.STEP_NUM,
    offline_evaluation=True,
    samples={keys.EVAL_SAMPLES: (30_000, 30_000)},
    open_keys=(fid_and_clip(keys.STEP_NUM, *OPEN_FID_AND_CLIP),),
    closed_keys=(
        RequiredKey(key=keys.GLOBAL_BATCH_SIZE, occurrence="at least one", value=(NOT_NEGATIVE,)),
        named(keys.OPT_NAME, "adamw"),
        once(keys.OPT_ADAMW_BETA_1, equal(0.9)),
        once(keys.OPT_ADAMW_BETA_2, equal(0.999)),
        once(keys.OPT_ADAMW_EPSILON, equal(1e-8)),
        once(keys.OPT_ADAMW_WEIGHT_DECAY, equal(0.01)),
        once(keys.OPT_BASE_LR, NOT_NEGATIVE),
        once(keys.OPT_LR_WARMUP_STEPS, NOT_NEGATIVE),
        fid_and_clip(keys.STEP_NUM, *CLOSED_FID_AND_CLIP),
    ),
)

_FLUX_TARGET: Final = within(above=0.0, most=0.586)

FLUX1: Final = BenchmarkRules(
    name="flux1",
    dataset="cc12m",
    metric="validation loss",
    target=0.586,
    direction="<=",
    runs=10,
    unit="samples",
    progress=keys.SAMPLES_COUNT,
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
        # From 6.1 on rounded up to whole batches, as in the rules.
        once("evaluation_frequency", equal(262_144)),
        named(keys.OPT_NAME, "adamw"),
        once(keys.OPT_ADAMW_BETA_1, equal(0.9)),
        once(keys.OPT_ADAMW_BETA_2, equal(0.95)),
        once(keys.OPT_ADAMW_EPSILON, equal(1e-8)),
        once(keys.OPT_ADAMW_WEIGHT_DECAY, equal(0.1)),
        once(keys.OPT_BASE_LR, NOT_NEGATIVE),
        once(keys.OPT_LR_WARMUP_STEPS, NOT_NEGATIVE),
        once(keys.OPT_GRADIENT_CLIP_NORM, equal(1.0)),
        evaluation(_FLUX_TARGET, progress=keys.SAMPLES_COUNT),
    ),
)
