"""What a secret looks like, kept as data.

Every rule reads a bounded number of characters at a bounded number of places, so its time grows with the length of the text and no
faster. A rule is tried only where one of its words stands. The formats are facts that the issuers document and that the public rule
sets (detect-secrets, gitleaks, trufflehog) list; the expressions are ours.
"""

from dataclasses import dataclass

from clawctl.privacy.rules.beside import in_named
from clawctl.privacy.rules.codes import in_said, is_code_under
from clawctl.privacy.rules.columns import in_backup_codes, in_columns
from clawctl.privacy.rules.commands import in_addresses, in_calls, in_commands, in_lines
from clawctl.privacy.rules.encoded import encoded, is_login
from clawctl.privacy.rules.formats import keys, marked_keys, of_providers
from clawctl.privacy.rules.forms import in_bytes, in_chains, in_constructors, in_forms, in_inserts
from clawctl.privacy.rules.hashes import hashed_passwords
from clawctl.privacy.rules.headers import tokens
from clawctl.privacy.rules.links import in_links
from clawctl.privacy.rules.lists import in_codes, in_lists
from clawctl.privacy.rules.names import is_secret_under
from clawctl.privacy.rules.nearby import near_names
from clawctl.privacy.rules.pairs import in_pairs, in_typed
from clawctl.privacy.rules.people import cards, emails, passes_luhn, phones
from clawctl.privacy.rules.pieces import BESIDE_A_NAME, KINDS, Finder, Kind, Span, Text, make_text, whole
from clawctl.privacy.rules.printed import at_prompts, in_outputs
from clawctl.privacy.rules.private_keys import PEM_BODY, private_keys
from clawctl.privacy.rules.recovery import in_network_keys, in_recovery_codes
from clawctl.privacy.rules.shaped import in_commented, in_dumps, in_prose
from clawctl.privacy.rules.things import in_cookies, in_things, is_cookie
from clawctl.privacy.rules.told import in_told
from clawctl.privacy.rules.values import entropy, is_plain_words
from clawctl.privacy.rules.wallets import in_wallets

__all__ = [
    "KINDS", "PEM_BODY", "RULES", "Kind", "Rule", "Span", "Text", "encoded", "entropy", "is_code_under", "is_cookie",
    "is_login", "is_plain_words",
    "is_secret_under", "make_text", "passes_luhn",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to find secrets. `by_words`: it believes the words around a value, so ordinary prose may deceive it."""

    name: str  # as `inspect health` shows it
    kind: Kind
    find: Finder
    by_words: bool = False


# In the order in which kinds win where they overlap.
RULES = (
    Rule("a private key", "private_key", private_keys),
    Rule("a key with a known format", "api_key", keys),
    Rule("a key with a prefix of its own", "api_key", marked_keys),
    Rule("a token in a header, cookie or address", "token", whole(tokens)),
    Rule("an address that is a secret itself", "token", whole(in_links)),
    Rule(BESIDE_A_NAME, "password", whole(in_named), by_words=True),
    Rule("opaque text near the name of a secret", "password", whole(near_names), by_words=True),
    Rule("a hashed password", "password", hashed_passwords),
    Rule("a login in an address", "password", whole(in_addresses)),
    Rule("the password of a command or query", "password", whole(in_commands), by_words=True),
    Rule("the password of a call", "password", whole(in_calls), by_words=True),
    Rule("a line of a password file", "password", whole(in_lines)),
    Rule("the words or private key of a wallet", "password", whole(in_wallets)),
    Rule("a PIN, code or login in a sentence", "password", whole(in_forms), by_words=True),
    Rule("a one-time code in a sentence", "password", whole(in_codes), by_words=True),
    Rule("a code of digits that a word names", "password", in_said, by_words=True),
    Rule("a login in a note", "password", whole(in_pairs), by_words=True),
    Rule("a password that a script types", "password", whole(in_typed)),
    Rule("a password told in a sentence", "password", whole(in_told), by_words=True),
    Rule("a password-shaped word in prose", "password", in_prose, by_words=True),
    Rule("a key as a machine prints it", "password", whole(in_dumps), by_words=True),
    Rule("an argument that its comment calls secret", "password", whole(in_commented), by_words=True),
    Rule("a secret of a thing that somebody owns", "password", whole(in_things), by_words=True),
    Rule("a session in a cookie", "token", whole(in_cookies)),
    Rule("a column of secrets", "password", whole(in_columns), by_words=True),
    Rule("a list of backup codes", "password", in_backup_codes, by_words=True),
    Rule("a list of secrets below their heading", "password", whole(in_lists), by_words=True),
    Rule("the key that a client is made with", "password", whole(in_constructors)),
    Rule("a secret that a command printed", "password", whole(in_outputs), by_words=True),
    Rule("a password typed at a prompt", "password", at_prompts, by_words=True),
    Rule("the key of a network", "password", in_network_keys, by_words=True),
    Rule("recovery codes", "password", in_recovery_codes, by_words=True),
    Rule("a secret in joined literals", "password", whole(in_chains)),
    Rule("a key as a list of bytes", "password", in_bytes),
    Rule("a password in an INSERT statement", "password", whole(in_inserts), by_words=True),
    Rule("a value under a provider's name", "api_key", of_providers),
    Rule("a card number", "card", cards),
    Rule("an email address", "email", emails),
    Rule("a phone number", "phone", phones),
)
