"""The strict checks of a submission folder as a whole: what MLPerf rules on and no tool of MLCommons looks at."""
