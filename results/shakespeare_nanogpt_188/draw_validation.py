"""Write a copy of a token store whose validation split is nanoGPT's sample of it: 20 batches of 12 windows.

python draw_validation.py STORE COPY SEED. A window has 65 tokens. With `--data.eval_sequences 240` a run then evaluates
each window once.
"""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

store, copy, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
shutil.rmtree(copy, ignore_errors=True)
shutil.copytree(store, copy)
tokens = np.fromfile(store / "validation.tokens", dtype=np.uint16)
torch.manual_seed(seed)
starts = torch.cat([torch.randint(len(tokens) - 64, (12,)) for _ in range(20)]).numpy()  # as its get_batch
drawn = tokens[starts[:, None] + np.arange(65)].tobytes()
(copy / "validation.tokens").write_bytes(drawn)
manifest = json.loads((store / "tokens.json").read_text())
print("validation.tokens:", manifest["files"]["validation.tokens"]["bytes"], "bytes, of which", len(drawn), "are drawn")
manifest["files"]["validation.tokens"] = {"bytes": len(drawn), "sha256": hashlib.sha256(drawn).hexdigest()}
(copy / "tokens.json").write_text(json.dumps(manifest))
