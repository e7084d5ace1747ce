"""Published methods that train a model faster, each usable alone or in a stack."""

from timedrun.methods.alibi import ALiBi as ALiBi
from timedrun.methods.alibi import alibi as alibi
from timedrun.methods.alibi import alibi_slopes as alibi_slopes
from timedrun.methods.augmix import AugMix as AugMix
from timedrun.methods.blurpool import BlurPool as BlurPool
from timedrun.methods.blurpool import blurpool as blurpool
from timedrun.methods.channels_last import ChannelsLast as ChannelsLast
from timedrun.methods.channels_last import channels_last as channels_last
from timedrun.methods.colout import ColOut as ColOut
from timedrun.methods.colout import colout as colout
from timedrun.methods.cutmix import CutMix as CutMix
from timedrun.methods.cutmix import cutmix as cutmix
from timedrun.methods.cutout import CutOut as CutOut
from timedrun.methods.cutout import cutout as cutout
from timedrun.methods.ema import EMA as EMA
from timedrun.methods.ema import ema_update as ema_update
from timedrun.methods.factorize import Factorize as Factorize
from timedrun.methods.float8 import Float8 as Float8
from timedrun.methods.float8 import float8_linear as float8_linear
from timedrun.methods.gated_linear_units import GatedLinearUnits as GatedLinearUnits
from timedrun.methods.ghost_batch_norm import GhostBatchNorm as GhostBatchNorm
from timedrun.methods.gradient_clipping import GradientClipping as GradientClipping
from timedrun.methods.gradient_clipping import clip_adaptive as clip_adaptive
from timedrun.methods.gyro_dropout import GyroDropout as GyroDropout
from timedrun.methods.label_smoothing import LabelSmoothing as LabelSmoothing
from timedrun.methods.layer_freezing import LayerFreezing as LayerFreezing
from timedrun.methods.log_bias import LogBias as LogBias
from timedrun.methods.log_bias import linear_log_constant_bias as linear_log_constant_bias
from timedrun.methods.low_precision_norm import LowPrecisionGroupNorm as LowPrecisionGroupNorm
from timedrun.methods.low_precision_norm import LowPrecisionLayerNorm as LowPrecisionLayerNorm
from timedrun.methods.method import Hooks as Hooks
from timedrun.methods.method import Method as Method
from timedrun.methods.method import NoEffect as NoEffect
from timedrun.methods.method import Position as Position
from timedrun.methods.method import Stage as Stage
from timedrun.methods.mixup import MixUp as MixUp
from timedrun.methods.mixup import mixup as mixup
from timedrun.methods.no_op_model import NoOpModel as NoOpModel
from timedrun.methods.progressive_resizing import ProgressiveResizing as ProgressiveResizing
from timedrun.methods.randaugment import RandAugment as RandAugment
from timedrun.methods.sam import SAM as SAM
from timedrun.methods.selective_backprop import SelectiveBackprop as SelectiveBackprop
from timedrun.methods.sequence_length_warmup import SequenceLengthWarmup as SequenceLengthWarmup
from timedrun.methods.squeeze_excite import SqueezeExcite as SqueezeExcite
from timedrun.methods.stack import Stack as Stack
from timedrun.methods.stack import stack as stack
from timedrun.methods.stochastic_depth import StochasticDepth as StochasticDepth
from timedrun.methods.swa import SWA as SWA
from timedrun.methods.tta import TTA as TTA
from timedrun.methods.tta import mean_over_views as mean_over_views
from timedrun.methods.weight_standardization import WeightStandardization as WeightStandardization
from timedrun.methods.whitening import Whitening as Whitening
from timedrun.methods.whitening import whiten as whiten
from timedrun.methods.whitening import whitening_weights as whitening_weights

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
        LowPrecisionLayerNorm,
        LowPrecisionGroupNorm,
        Float8,
        ChannelsLast,
        RandAugment,
        AugMix,
        LabelSmoothing,
        MixUp,
        CutMix,
        ProgressiveResizing,
        ColOut,
        CutOut,
        ALiBi,
        SequenceLengthWarmup,
        SelectiveBackprop,
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
