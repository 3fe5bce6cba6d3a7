"""The model that knows the crafts of the built-in environments weakly: its corpus, its training, and what it can do."""
