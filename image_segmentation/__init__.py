"""2-D U-Net segmentation of brain scans, trained to a fixed mean Dice coefficient on the clock."""

from timedrun.runner.benchmark import EVERYTHING, BenchmarkSpec, benchmark_rules

SPEC = BenchmarkSpec(
    title="Image segmentation: 2-D U-Net on slices of BraTS to a mean Dice of 0.70",
    own_rules=benchmark_rules(
        "unet_brats", dataset="brats", metric="mean Dice", target=0.70, direction=">=", unit="epoch", runs=5
    ),
    default_data="icbm152",
    supports=EVERYTHING,
)
