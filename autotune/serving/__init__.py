"""A local page on which model, system and strategy are chosen and the answer is live."""
