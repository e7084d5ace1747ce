"""Text, from documents to stores of sequences."""
