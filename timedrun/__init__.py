"""MLPerf-style time-to-train harness: the timed protocol, methods, configs and submissions that benchmarks share."""
