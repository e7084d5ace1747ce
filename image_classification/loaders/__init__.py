"""Ways to turn stored images into training and evaluation batches, behind one interface."""
