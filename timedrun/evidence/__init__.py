"""Evidence from runs: races, sweeps and tunings of configs. It stands on the runner and on racing."""
