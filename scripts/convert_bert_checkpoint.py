"""Convert a TensorFlow checkpoint to a .safetensors file under TensorFlow's names; TensorFlow verifies the checksums.

Needs tensorflow and safetensors, not timedrun: python convert_bert_checkpoint.py PREFIX OUT.safetensors
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

prefix, out = sys.argv[1:]
reader = tf.train.load_checkpoint(prefix)
variables = {name: np.asarray(reader.get_tensor(name), order="C") for name in reader.get_variable_to_shape_map()}
index_md5 = hashlib.md5(Path(prefix + ".index").read_bytes(), usedforsecurity=False).hexdigest()
save_file(variables, out, metadata={"tensorflow_index_md5": index_md5})
