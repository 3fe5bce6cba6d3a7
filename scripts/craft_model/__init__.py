"""The model with weak skills in the built-in environments: its corpus, its training and its report."""
