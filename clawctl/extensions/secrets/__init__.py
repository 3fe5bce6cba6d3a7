"""Rules that describe the form of secrets as data.

Every rule reads a bounded number of characters at a bounded number of places, so its time is linear in the length of the text. A
rule is tried only where one of its words occurs. The formats are facts that the issuers document and that public rule sets
(detect-secrets, gitleaks, trufflehog) list; the expressions were written for clawctl.
"""

from dataclasses import dataclass
from typing import Literal

from clawctl.extensions.secrets.commands import in_addresses, in_calls, in_commands, in_lines
from clawctl.extensions.secrets.context import near_names
from clawctl.extensions.secrets.digit_codes import in_digit_codes, is_code_under
from clawctl.extensions.secrets.disclosures import in_disclosures
from clawctl.extensions.secrets.encoded import encoded, is_login
from clawctl.extensions.secrets.formats import keys, marked_keys, of_providers
from clawctl.extensions.secrets.hashes import hashed_passwords
from clawctl.extensions.secrets.headers import tokens
from clawctl.extensions.secrets.key_values import in_key_values
from clawctl.extensions.secrets.labelled import in_bytes, in_chains, in_codes, in_constructors, in_inserts, in_labelled
from clawctl.extensions.secrets.links import in_links
from clawctl.extensions.secrets.names import is_secret_under
from clawctl.extensions.secrets.people import cards, emails, passes_luhn, phones
from clawctl.extensions.secrets.personal_items import in_cookies, in_personal_items, is_cookie
from clawctl.extensions.secrets.private_keys import private_keys
from clawctl.extensions.secrets.prose import in_dumps, in_prose
from clawctl.extensions.secrets.recovery import in_network_keys, in_recovery_codes
from clawctl.extensions.secrets.terminal import in_outputs
from clawctl.extensions.secrets.text import KINDS, AnchoredSearch, Kind, Span, Text, make_text, spans_of
from clawctl.extensions.secrets.values import entropy
from clawctl.extensions.secrets.wallets import in_wallets

__all__ = [
    "KINDS", "RULES", "Kind", "Rule", "Span", "Text", "encoded", "entropy", "is_code_under", "is_cookie",
    "is_login", "is_secret_under", "make_text", "passes_luhn", "spans_of",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to find secrets. `by`: the evidence. Words around a value, or a name beside it, may also occur in ordinary prose."""

    name: str  # as `inspect health` shows it
    kind: Kind
    search: AnchoredSearch
    by: Literal["form", "words", "name"] = "form"


# In order of precedence where findings overlap.
RULES = (
    Rule("a private key", "private_key", private_keys),
    Rule("a key with a known format", "api_key", keys),
    Rule("a key with a prefix of its own", "api_key", marked_keys),
    Rule("a token in a header, cookie or address", "token", tokens),
    Rule("an address that is a secret itself", "token", in_links),
    Rule("a value beside a name like password or key", "password", in_key_values, by="name"),
    Rule("opaque text near the name of a secret", "password", near_names, by="words"),
    Rule("a hashed password", "password", hashed_passwords),
    Rule("a login in an address", "password", in_addresses),
    Rule("the password of a command or query", "password", in_commands, by="words"),
    Rule("the password of a call", "password", in_calls, by="words"),
    Rule("a line of a password file", "password", in_lines),
    Rule("the words or private key of a wallet", "password", in_wallets),
    Rule("a PIN, code or login in a sentence", "password", in_labelled, by="words"),
    Rule("a one-time code in a sentence", "password", in_codes, by="words"),
    Rule("a code of digits that a word names", "password", in_digit_codes, by="words"),
    Rule("a password told in a sentence", "password", in_disclosures, by="words"),
    Rule("a password-shaped word in prose", "password", in_prose, by="words"),
    Rule("a key as a machine prints it", "password", in_dumps, by="words"),
    Rule("a secret of a thing that somebody owns", "password", in_personal_items, by="words"),
    Rule("a session in a cookie", "token", in_cookies),
    Rule("the key that a client is made with", "password", in_constructors),
    Rule("a secret that a command printed", "password", in_outputs, by="words"),
    Rule("the key of a network", "password", in_network_keys, by="words"),
    Rule("recovery codes", "password", in_recovery_codes, by="words"),
    Rule("a secret in joined literals", "password", in_chains),
    Rule("a key as a list of bytes", "password", in_bytes),
    Rule("a password in an INSERT statement", "password", in_inserts, by="words"),
    Rule("a value under a provider's name", "api_key", of_providers),
    Rule("a card number", "card", cards),
    Rule("an email address", "email", emails),
    Rule("a phone number", "phone", phones),
)
