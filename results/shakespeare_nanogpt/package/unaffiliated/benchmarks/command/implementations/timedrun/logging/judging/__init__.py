"""The judge of timed runs: results scored, compared, checked and shown. Imports no torch."""
