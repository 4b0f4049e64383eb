"""A simulated step in the formats of other people's viewers."""
