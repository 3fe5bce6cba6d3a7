"""Tasks on a repository: small repositories that clawctl draws, or rows in the format of SWE-bench."""
