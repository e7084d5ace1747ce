"""Building of image stores from a folder of images or ImageNet's archives: parallel, resumable after any kill."""
