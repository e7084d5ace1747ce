"""Method that `timedrun new method` copies, and its test."""
