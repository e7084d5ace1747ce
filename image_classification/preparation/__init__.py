"""Makes stores of images from ImageNet's archives or a folder of images, in parallel, resumable after any kill."""
