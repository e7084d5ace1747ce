"""Run the example of the first argument beside a torchvision that was built for another torch.

Such a torchvision lacks its operators and cannot be imported, but Lightning and transformers import it. None of
the examples uses the operators: declared, they let the import pass.
"""

import runpy
import sys
from pathlib import Path

import torch

try:
    import torchvision  # noqa: F401  # what the example imports
except ImportError:
    pass  # none of the examples needs it
except RuntimeError:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
