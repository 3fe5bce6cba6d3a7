"""The model with weak skills in clicking on screenshots: its corpus, its training and its report."""
