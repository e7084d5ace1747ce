"""Files, folders and processes that write them."""
