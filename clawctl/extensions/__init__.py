"""Parts of clawctl that can be lifted out: the product imports none of them, and works without the folder of any.

An extension announces what it adds as entry points in pyproject.toml, as an installed package would. It imports the product's seams
and its own modules.
"""
