"""What a secret looks like, kept as data.

Every rule reads a bounded number of characters at a bounded number of places, so its time grows with the length of the text and no
faster. A rule is tried only where one of its words stands. The formats are facts that the issuers document and that the public rule
sets (detect-secrets, gitleaks, trufflehog) list; the expressions are ours.
"""

from clawctl.privacy.rules.beside import in_named
from clawctl.privacy.rules.commands import in_addresses, in_calls, in_commands, in_lines
from clawctl.privacy.rules.encoded import encoded, is_login
from clawctl.privacy.rules.formats import keys, of_providers
from clawctl.privacy.rules.forms import in_chains, in_constructors, in_forms, in_inserts
from clawctl.privacy.rules.headers import tokens
from clawctl.privacy.rules.names import is_secret_under
from clawctl.privacy.rules.people import cards, emails, passes_luhn, phones
from clawctl.privacy.rules.pieces import KINDS, Finder, Kind, Span, Text, make_text, whole
from clawctl.privacy.rules.private_keys import PEM_BODY, private_keys
from clawctl.privacy.rules.values import entropy

__all__ = [
    "KINDS", "PEM_BODY", "Finder", "Kind", "Span", "Text", "encoded", "entropy", "finders", "is_login", "is_secret_under",
    "make_text", "passes_luhn",
]  # fmt: skip

# In the order in which kinds win where they overlap.
_FINDERS: tuple[tuple[Kind, Finder], ...] = (
    ("private_key", private_keys),
    ("api_key", keys),
    ("token", whole(tokens)),
    *(
        ("password", whole(find))
        for find in (in_named, in_addresses, in_commands, in_calls, in_lines, in_forms, in_constructors, in_chains, in_inserts)
    ),
    ("api_key", of_providers),
    ("card", cards),
    ("email", emails),
    ("phone", phones),
)


def finders(kinds: frozenset[Kind]) -> list[Finder]:
    """What finds secrets of these kinds."""
    return [find for kind, find in _FINDERS if kind in kinds]
