"""Analysis of where the time of training goes, and choice of settings by it."""
