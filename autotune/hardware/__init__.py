"""Systems that do not exist yet: what each figure is worth, and which design is best."""
