"""Makes the model of the world of many wishes."""
