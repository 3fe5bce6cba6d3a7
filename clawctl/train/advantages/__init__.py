"""The differences between methods: which turns have a term, and the advantage of each of their tokens.

A method is a list of terms. A term is a weight, the turns it trains, and a pure function. The function computes the advantages of
one turn, or its loss over the likeliest tokens. The loop computes one policy loss per term, over the term's own global token count,
and is the same for all methods.
"""

from clawctl.config import TrainConfig
from clawctl.train.advantages import binary, combine, grpo, hybrid, opd, opd_topk
from clawctl.train.advantages.term import Scores, Term, Tops

__all__ = ["Scores", "Term", "Tops", "likeliest", "terms_of"]

_METHODS = {
    "binary": binary.terms,
    "grpo": grpo.terms,
    "opd": opd.terms,
    "opd_topk": opd_topk.terms,
    "combine": combine.terms,
    "hybrid": hybrid.terms,
}


def terms_of(config: TrainConfig) -> list[Term]:
    """The terms of the recipe's method."""
    return _METHODS[config.method](config)


def likeliest(config: TrainConfig) -> int | None:
    """Number of likeliest tokens that the method compares at each position; None if it uses only the sampled tokens."""
    known = {"opd_topk": opd_topk.TOPK, "hybrid": hybrid.TOPK}.get(config.method)
    return known and (config.topk or known)
