"""Tasks on a repository: our own small ones, or rows in the shape of SWE-bench."""
