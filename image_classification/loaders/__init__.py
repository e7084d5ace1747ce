"""Image loaders: stored images to training and evaluation batches, behind one interface."""
