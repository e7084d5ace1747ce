"""Building of image stores from a folder of images: parallel, resumable after any kill."""
