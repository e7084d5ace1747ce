"""From result files to a submission: score a set of runs, compare two sets, package sets, plot them."""
