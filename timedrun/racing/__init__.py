"""A race: interleaved runs of several configs, their record, and the report made of them."""
