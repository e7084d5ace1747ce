"""Write, read and check the events of MLPerf training logs, without torch."""
