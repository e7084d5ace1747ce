"""Analysis of where the time of training goes."""
