"""Methods differ here and nowhere else: which turns have a term, and what the advantage of each of their tokens is.

A method is a list of terms. A term is a weight, the turns it trains, and a pure function that makes the advantages of one turn.
The loop computes one policy loss per term, over the term's own global token count, and knows no method.
"""

from clawctl.config import TrainConfig
from clawctl.train.advantages import binary, combine, opd
from clawctl.train.advantages.term import Scores, Term

__all__ = ["Scores", "Term", "terms_of"]

_METHODS = {"binary": binary.terms, "opd": opd.terms, "combine": combine.terms}


def terms_of(config: TrainConfig) -> list[Term]:
    """The terms of the recipe's method."""
    return _METHODS[config.method](config)
