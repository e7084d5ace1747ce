"""Events of an MLPerf training log: written, read and checked, without torch."""
