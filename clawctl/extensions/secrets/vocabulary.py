"""Word lists: words that announce a secret, placeholders for one, and words that announce an id."""

import re

from clawctl.extensions.secrets.tables import table

LISTS = table("vocabulary.txt")


def words_of(heading: str) -> list[str]:
    """The words of a list. `·` stands for a space in them."""
    return [word.replace("·", " ") for word in LISTS[heading].split()]


# The last word of a name determines the kind of its value.
_PASSWORD_WORDS = LISTS["password"].split()
KEY_WORDS = LISTS["key"].split()
ENGLISH = frozenset(LISTS["english"].split())
LONGEST_FIRST = sorted(set(words_of("password")), key=len, reverse=True)
KEYS_LONGEST_FIRST = sorted(KEY_WORDS, key=len, reverse=True)

# Strings searched for in lower-case text. For an ASCII word its start is enough.
ANCHORS = tuple(words_of("anchors"))
ANCHORS_BEYOND = tuple(
    dict.fromkeys(
        re.sub(r"(?<=.{4}).*", "", word.replace("·", " ")) for word in (*_PASSWORD_WORDS, *KEY_WORDS) if not word.isascii()
    )
)

# Words that are also ordinary words of another language; they need a word boundary before them.
SHORT = frozenset(LISTS["short"].split())

# Placeholders that occur instead of a secret.
PLACEHOLDERS = frozenset((*LISTS["placeholders"].split(), *LONGEST_FIRST, *KEY_WORDS))

# Prefixes of ids that look like keys, and prefixes of keys.
IDS = frozenset(LISTS["ids"].split())
KEY_PARTS = frozenset(LISTS["key parts"].split())

# Key issuers, as they appear in variable names; from the public rule sets.
PROVIDERS = frozenset(LISTS["providers"].split())
# Groups of four letters that are ordinary words, and not parts of a key
PLAIN_FOURS = frozenset(LISTS["words of four letters"].split())
# The last word of a name whose value is not secret, however random it looks.
NAMES_OF_IDS = frozenset(LISTS["names of ids"].split())
# The last word of a name that mentions a secret but does not hold one.
NO_VALUES = NAMES_OF_IDS | frozenset(LISTS["no values"].split())
