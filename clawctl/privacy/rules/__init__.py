"""Rules that describe the form of secrets as data.

Every rule reads a bounded number of characters at a bounded number of places, so its time is linear in the length of the text. A
rule is tried only where one of its words occurs. The formats are facts that the issuers document and that public rule sets
(detect-secrets, gitleaks, trufflehog) list; the expressions were written for clawctl.
"""

from dataclasses import dataclass

from clawctl.privacy.rules.columns import in_backup_codes, in_columns
from clawctl.privacy.rules.commands import in_addresses, in_calls, in_commands, in_lines
from clawctl.privacy.rules.context import near_names
from clawctl.privacy.rules.digit_codes import in_digit_codes, is_code_under
from clawctl.privacy.rules.disclosures import in_disclosures
from clawctl.privacy.rules.encoded import encoded, is_login
from clawctl.privacy.rules.formats import keys, marked_keys, of_providers
from clawctl.privacy.rules.hashes import hashed_passwords
from clawctl.privacy.rules.headers import tokens
from clawctl.privacy.rules.key_values import in_key_values
from clawctl.privacy.rules.labelled import in_bytes, in_chains, in_constructors, in_inserts, in_labelled
from clawctl.privacy.rules.links import in_links
from clawctl.privacy.rules.lists import in_codes, in_lists
from clawctl.privacy.rules.logins import in_logins, in_typed_fields
from clawctl.privacy.rules.names import is_secret_under
from clawctl.privacy.rules.people import cards, emails, passes_luhn, phones
from clawctl.privacy.rules.personal_items import in_cookies, in_personal_items, is_cookie
from clawctl.privacy.rules.private_keys import PEM_BODY, private_keys
from clawctl.privacy.rules.prose import in_commented, in_dumps, in_prose
from clawctl.privacy.rules.recovery import in_network_keys, in_recovery_codes
from clawctl.privacy.rules.terminal import at_prompts, in_outputs
from clawctl.privacy.rules.text import KEY_VALUE_RULE, KINDS, Finder, Kind, Span, Text, make_text, to_value_end
from clawctl.privacy.rules.values import entropy, is_plain_words
from clawctl.privacy.rules.wallets import in_wallets

__all__ = [
    "KINDS", "PEM_BODY", "RULES", "Kind", "Rule", "Span", "Text", "encoded", "entropy", "is_code_under", "is_cookie",
    "is_login", "is_plain_words",
    "is_secret_under", "make_text", "passes_luhn",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to find secrets. `by_words`: the rule relies on the words around a value, so ordinary prose may trigger it."""

    name: str  # as `inspect health` shows it
    kind: Kind
    find: Finder
    by_words: bool = False


# In order of precedence where findings overlap.
RULES = (
    Rule("a private key", "private_key", private_keys),
    Rule("a key with a known format", "api_key", keys),
    Rule("a key with a prefix of its own", "api_key", marked_keys),
    Rule("a token in a header, cookie or address", "token", to_value_end(tokens)),
    Rule("an address that is a secret itself", "token", to_value_end(in_links)),
    Rule(KEY_VALUE_RULE, "password", to_value_end(in_key_values), by_words=True),
    Rule("opaque text near the name of a secret", "password", to_value_end(near_names), by_words=True),
    Rule("a hashed password", "password", hashed_passwords),
    Rule("a login in an address", "password", to_value_end(in_addresses)),
    Rule("the password of a command or query", "password", to_value_end(in_commands), by_words=True),
    Rule("the password of a call", "password", to_value_end(in_calls), by_words=True),
    Rule("a line of a password file", "password", to_value_end(in_lines)),
    Rule("the words or private key of a wallet", "password", to_value_end(in_wallets)),
    Rule("a PIN, code or login in a sentence", "password", to_value_end(in_labelled), by_words=True),
    Rule("a one-time code in a sentence", "password", to_value_end(in_codes), by_words=True),
    Rule("a code of digits that a word names", "password", in_digit_codes, by_words=True),
    Rule("a login in a note", "password", to_value_end(in_logins), by_words=True),
    Rule("a password that a script types", "password", to_value_end(in_typed_fields)),
    Rule("a password told in a sentence", "password", to_value_end(in_disclosures), by_words=True),
    Rule("a password-shaped word in prose", "password", in_prose, by_words=True),
    Rule("a key as a machine prints it", "password", to_value_end(in_dumps), by_words=True),
    Rule("an argument that its comment calls secret", "password", to_value_end(in_commented), by_words=True),
    Rule("a secret of a thing that somebody owns", "password", to_value_end(in_personal_items), by_words=True),
    Rule("a session in a cookie", "token", to_value_end(in_cookies)),
    Rule("a column of secrets", "password", to_value_end(in_columns), by_words=True),
    Rule("a list of backup codes", "password", in_backup_codes, by_words=True),
    Rule("a list of secrets below their heading", "password", to_value_end(in_lists), by_words=True),
    Rule("the key that a client is made with", "password", to_value_end(in_constructors)),
    Rule("a secret that a command printed", "password", to_value_end(in_outputs), by_words=True),
    Rule("a password typed at a prompt", "password", at_prompts, by_words=True),
    Rule("the key of a network", "password", in_network_keys, by_words=True),
    Rule("recovery codes", "password", in_recovery_codes, by_words=True),
    Rule("a secret in joined literals", "password", to_value_end(in_chains)),
    Rule("a key as a list of bytes", "password", in_bytes),
    Rule("a password in an INSERT statement", "password", to_value_end(in_inserts), by_words=True),
    Rule("a value under a provider's name", "api_key", of_providers),
    Rule("a card number", "card", cards),
    Rule("an email address", "email", emails),
    Rule("a phone number", "phone", phones),
)
