"""Functions of other libraries that are replaced at run time."""
