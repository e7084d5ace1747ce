"""ResNet image classification, trained to a fixed top-1 accuracy on the clock (MLPerf Training v2.0, open division)."""

from timedrun.runner.benchmark import EVERYTHING, BenchmarkSpec

SPEC = BenchmarkSpec(
    title="Image classification: ResNet-50 v1.5 on ImageNet to 75.90 % top-1",
    mlperf_benchmark="resnet",
    ruleset="2.0.0",
    default_data="digits",
    supports=EVERYTHING,
)
