"""Foundations of the judge: errors, standard streams, files written whole, locks, the ledger."""
