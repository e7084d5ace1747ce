"""Reader of MLPerf's initial checkpoint, written by TensorFlow."""
