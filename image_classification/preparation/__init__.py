"""Building of image stores from ImageNet's archives or a folder of images: parallel, resumable after any kill."""
