"""Published methods that train a model faster, each usable alone or in a stack."""

from timedrun.methods.alibi import ALiBi, alibi, alibi_slopes
from timedrun.methods.augmix import AugMix
from timedrun.methods.blurpool import BlurPool, blurpool
from timedrun.methods.channels_last import ChannelsLast, channels_last
from timedrun.methods.colout import ColOut, colout
from timedrun.methods.cutmix import CutMix, cutmix
from timedrun.methods.cutout import CutOut, cutout
from timedrun.methods.ema import EMA, ema_update
from timedrun.methods.factorize import Factorize
from timedrun.methods.float8 import Float8, float8_linear
from timedrun.methods.fused_layers import FusedLayers
from timedrun.methods.gated_linear_units import GatedLinearUnits
from timedrun.methods.ghost_batch_norm import GhostBatchNorm
from timedrun.methods.gradient_clipping import GradientClipping, clip_adaptive
from timedrun.methods.gyro_dropout import GyroDropout
from timedrun.methods.label_smoothing import LabelSmoothing
from timedrun.methods.layer_freezing import LayerFreezing
from timedrun.methods.log_bias import LogBias, linear_log_constant_bias
from timedrun.methods.low_precision_norm import LowPrecisionGroupNorm, LowPrecisionLayerNorm
from timedrun.methods.masked_language_model import MaskedHead, Unpadding
from timedrun.methods.method import Hooks, Method, NoEffect, Position, Stage
from timedrun.methods.mixup import MixUp, mixup
from timedrun.methods.no_op_model import NoOpModel
from timedrun.methods.progressive_resizing import ProgressiveResizing
from timedrun.methods.randaugment import RandAugment
from timedrun.methods.random_erasing import RandomErasing
from timedrun.methods.sam import SAM
from timedrun.methods.selective_backprop import InfoBatch, SelectiveBackprop
from timedrun.methods.sequence_length_warmup import SequenceLengthWarmup
from timedrun.methods.squeeze_excite import SqueezeExcite
from timedrun.methods.stack import Stack, stack
from timedrun.methods.stochastic_depth import StochasticDepth
from timedrun.methods.swa import SWA
from timedrun.methods.trivial_augment import TrivialAugment
from timedrun.methods.tta import TTA, mean_over_views
from timedrun.methods.weight_standardization import WeightStandardization
from timedrun.methods.whitening import Whitening, whiten, whitening_weights

REGISTRY: dict[str, type[Method]] = {
    method.name: method
    for method in (
        LogBias,
        Whitening,
        BlurPool,
        Factorize,
        SqueezeExcite,
        GhostBatchNorm,
        WeightStandardization,
        StochasticDepth,
        GyroDropout,
        GatedLinearUnits,
        Unpadding,
        MaskedHead,
        LowPrecisionLayerNorm,
        LowPrecisionGroupNorm,
        Float8,
        FusedLayers,
        ChannelsLast,
        RandAugment,
        TrivialAugment,
        AugMix,
        LabelSmoothing,
        MixUp,
        CutMix,
        ProgressiveResizing,
        ColOut,
        CutOut,
        RandomErasing,
        ALiBi,
        SequenceLengthWarmup,
        SelectiveBackprop,
        InfoBatch,
        SAM,
        LayerFreezing,
        GradientClipping,
        EMA,
        NoOpModel,
        SWA,
        TTA,
    )
}
"""Every method by its name, in the order in which the published configs stack them; a method that is added to a config
takes its place in this order."""
