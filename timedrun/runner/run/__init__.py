"""One timed run: protocol, state, checkpoints, launch."""
