"""Claims and recorded runs, reproduced."""
