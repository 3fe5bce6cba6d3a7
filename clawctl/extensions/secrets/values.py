# ruff: noqa: E501 - expressions and templates stay lines
"""Checks whether a value looks like a secret, or only resembles one: words, placeholders, code, dates."""

import math
import re
from collections import Counter

from clawctl.extensions.secrets.text import regex
from clawctl.extensions.secrets.vocabulary import LISTS, NO_VALUES, PLACEHOLDERS


def entropy(text: str) -> float:
    """Return the entropy in bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values()) if text else 0.0


DIGIT, _LETTER = regex(r"\d"), regex(r"[^\W\d_]")
RUN = regex(r"[A-Za-z0-9]{12,}")


def mixed(text: str) -> bool:
    return DIGIT.search(text) is not None and _LETTER.search(text) is not None


def is_drawn(key: str) -> bool:
    """Whether a value in the format of a key is a key. Names with a key's prefix (`sk-learn-contrib-estimators`) consist of
    words.
    """
    if _UUID_IN.search(key):
        return True
    body = "".join(_ALNUMS.findall(key[:256]))
    letters = "".join(_LETTERS.findall(body))
    upper = sum(map(str.isupper, letters))
    if mixed(body) and (
        entropy(body) >= 4.2 or has_dense_run(key) or (len(key) <= 30 and entropy(body) >= 2.8 and not is_wordy(key))
    ):
        return True
    return len(letters) >= 12 and (0.25 <= upper / len(letters) <= 0.75 or (letters.isupper() and " " not in key))


_UUID_IN = regex(r"(?i)(?<![0-9a-f])[0-9a-z]{8}-(?:[0-9a-z]{4}-){3}[0-9a-z]{12}(?![0-9a-z])")
_ALNUMS, _LETTERS = regex(r"[A-Za-z0-9]+"), regex(r"[A-Za-z]+")


def is_letters_drawn(value: str) -> bool:
    """Whether the value has 16 or more letters with both cases about equally frequent. A random key may lack digits; a name has few
    capitals.
    """
    letters = "".join(_LETTERS.findall(value[:256]))
    upper = sum(map(str.isupper, letters))
    return len(letters) >= 16 and 0.3 * len(letters) <= upper <= 0.7 * len(letters) and turns(letters) * 8 >= len(letters)


_TURN = regex(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")


def turns(text: str) -> int:
    """Count the changes from lower case to capital and between letter and digit: frequent in keys, rare in names."""
    return len(_TURN.findall(text))


def is_dense(run: str) -> bool:
    """Whether letters and digits alternate, as in hex and in keys of one case."""
    return mixed(run) and entropy(run[:128]) >= 2.8 and turns(run[:128]) * 5 >= len(run[:128])


def has_dense_run(text: str) -> bool:
    """Whether the text has a run of letters and digits that is not a word. Names with a key's prefix (`sk-learn-…`) have none."""
    return any(mixed(run) and entropy(run) >= 3.0 for run in RUN.findall(text[:512]))


EXAMPLE = regex(r"(?i)example|abcdefghijkl|x{6}|your[_-]?|0{12}|1234567890abcdef$|placeholder|dummy|redacted")

UUID_ALONE = regex(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}={0,2}")
WORD_IN = regex(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}")


def is_random(run: str) -> bool:
    """Whether letters of both cases and digits occur in an order that names in camel case do not have."""
    return (
        not run.islower() and not run.isupper() and mixed(run) and any(map(str.islower, run)) and any(map(str.isupper, run))
        and len(WORD_IN.sub("", run[:256])) * 2 >= len(run[:256]) and entropy(run[:256]) >= 3.3
    )  # fmt: skip


def is_opaque(value: str) -> bool:
    """Whether the value is a key without a known format: a run of 20 or more letters and digits that is random or hex."""
    run = max(RUN.findall(value), key=len, default="")
    return (
        len(run) >= 20
        and not is_name(run)
        and (is_random(run) or is_letters_drawn(run) or (is_dense(run) and not _WORD_9.search(run)))
    )


_WORD_9 = regex(r"[a-z]{9}")

_TEMPLATE = regex(
    r"""(?ix) <[^>]*>?$ | [x*!]:\d+: | \{ | \$ (?:[({]|\d+$|[a-z_]\w*(?:$|[\[/:.,;)"'\s@|\\<>&+=?-])|(?:argon2|pbkdf2|scrypt|bcrypt)[\w-]*\$) | %\w+% $ | %[a-z]{1,3} $ | % [({] | \[redacted: | @\w+@ $ | \.{3} | x{3,} | my[_-]?(?:password|secret|token|key)
    | (?:sk|pk)-(?:x+|\.+|your) | pk_(?:live|test)_ | [*•.\#x·-]+ $ | \[?redact | \[(?:filter|mask|hidden|omit|remov) | secrets?\. (?=[a-z]|$)
    | (?:your|enter|insert|replace|change|put|add|set|todo|fixme|example|dummy|placeholder|sample) (?:[_. -](?=[a-z]|$) | $ | (?-i:(?=[A-Z])) | (?:me|my|the|your|here|this|it\b|with|own\b|new|some|a?strong|random|real|value|text|data|string|user|db|pass|pw|secret|token|key|api|code))
    | \(\s | \)\.[a-z_] | \(\( | \^?[(\[](?:\?|[\^A-Za-z]-|\\[a-z]) | \(?(?:optional|again|required|hidden|empty|none)\b | &lt; | \#\{ | !(?:vault|secret|ref|sub|env) | op:// | vault: | env[.:] | \[(?:ref|active|checked|cursor|disabled|expanded|level|pressed|required|selected)[=\]] | \d{1,3},[a-z_$][\w$]*: | process\.env | arn: | projects/ | enc\[ | keyring | \.[*+] | [@%$]env\b"""
)
_HOLE = regex(r"\\f[BIRP]|[Aa]-[Zz](?:[Aa]-[Zz]|0-9|\\d)|0-9A-F|\$\{|\{\d?\}|%s|\{\{|\.\.\.$|…$|[*•]{3}|%[({]\w+|\}\}$|\$\(")
CODE = regex(
    r"""(?x) [A-Za-z_]{1,40}(?:(?:\.|->|::|\?\.)[A-Za-z_]{1,40}){1,8}[\W_]*$ (?<!!) | [A-Za-z_](?:[\w.]|::){0,80}(?:[(\[]|<[A-Za-z_\[{(]) | self\. | os\. | [A-Za-z_]\w*:$
    | ~?\.{0,2}/{1,2}[a-z0-9_.-]+(?:/[\w./-]*)?$  # a path
    | \w{2,12}:// | [A-Z]:\\ | [\w.+-]{1,64}@[\w-]{1,63}\.[a-z.]{2,24}$ | [a-z]+(?:[A-Z][a-z]+){1,6}$ | [a-z_]+(?:_[a-z]+)+[;,)]*$ | (?:new|await|function|lambda|async)\b | \w+\s?=> | [!=<>]=
    | &(?:mut\b|\[|'[a-z]+\b|[a-z_]+$) | \*[a-z_]+$ | \w+\)+;?$ | \d\}|\w+\{ | [\[(][A-Za-z_][\w.]*(?:\(|$|,) | \w{1,40}\|\w"""
)
TECHNICAL = regex(
    r"""(?ix) \W*(?: (?:sha|md|rsa|oauth|base|utf|aes|bcrypt|scrypt|argon|pbkdf|ed|ecdsa|hs|rs|es|ps|rfc|iso|http|tls|ssl|v|h|ipv|nist|fips|cve|gpt|page|line|step|section|col|row|type|test|user|attempt|issue|pr|php|python|py|node|win|k8s|s|p|ip|x|b|e2e|i18n|l10n|a11y|oauth|owasp|web|db|saml|crypt|des|wpa|mp|log4j|level|error|err|var|foo|bar|arg|param|field|column|case|item)
      [-_.]?\d{1,4}[a-z]?(?:[-_.][a-z0-9]+)* | \d+(?:[-–.]?\d+)?[-–]?(?-i:[A-Za-z]?[A-Z]{0,4}[a-z]{0,12}|[A-Z]{1,12})\.? | \d+(?:[.:,/_-]\d+)* | \d+(?:st|nd|rd|th) | \d+(?::[^\W\d_]{1,4}|\.?[\u00ba\u00aa°]|-?[^\W\d_a-z]{1,4}) | \d+[%€$£+]? ) \W*$"""
)


# Ids that APIs give to requests, answers and files, which open nothing
ISSUED_ID = regex(r"(?:req|resp|msg|call|toolu|chatcmpl|cmpl|run|thread|evt|batch|file|asst)_[a-z0-9]{8,64}\Z")


def is_stand_in(value: str, quoted: bool = False) -> bool:
    """Whether the value is a placeholder, a template or code. `quoted`: the value is a literal and therefore rarely code."""
    bare = value.strip("\"'`“”«»„()[]{}<>.,;:!?* ").lower()
    return (
        bare in PLACEHOLDERS
        or ISSUED_ID.match(bare) is not None
        or bool(_TEMPLATE.match(value))
        or _HOLE.search(value[:256]) is not None
        or (_is_code(value) and not (quoted and (_is_typed(value) or is_words(value))))
    )


_TYPED = regex(
    r"(?=[^\n]*\d)(?=[^\n]*[A-Za-z])(?=[^\n]*[!#$%^&*~?§|:;)])(?![!=<>]=|/|self\.|os\.|[^\n]*(?:://|=>|->|\(\)|\w[(\[][\w.\"', ]*[)\]]$))"
)
_WORDS_JOINED = regex(r"[A-Za-z]{3,14}(?:[_.-][A-Za-z]{2,14}){1,5}|[A-Z]?[a-z]{2,13}(?:[A-Z][a-z]{2,13}){1,5}")
_WORD_OF_WORDS = regex(r"[A-Z]?[a-z]+|[A-Z]+")


def _is_typed(value: str) -> bool:
    """Whether the value mixes letters, digits and special characters in a way that code does not (`Tiger(77)!`)."""
    return _TYPED.match(value[:128]) is not None


def _is_code(value: str) -> bool:
    return CODE.match(value[:256]) is not None and not _is_bracketed(value)


_BRACKET_WITHIN = regex(r"\w[(\[{].*\w$|\w[(\[{][^)\]}]*$|\d\}")
_CLOSED = regex(r"\w[(\[][\"']|\w[(\[][^()\[\]]{0,40}[)\]][.,;]")
_OTHER_THAN_ALNUM = regex(r"[^A-Za-z0-9]+")


def _is_bracketed(value: str) -> bool:
    """Whether a bracket is part of a generated password (`oASZi(HF_F4o`). In code a word precedes the bracket, and the bracket is
    closed.
    """
    value = value[:128].rstrip(".,;:")
    bare = _OTHER_THAN_ALNUM.sub("", value)
    return (
        len(bare) >= 8
        and (mixed(bare) or is_shuffled(bare))
        and bare != bare.lower()
        and bare != bare.upper()
        and "://" not in value
        and _CLOSED.search(value) is None
        and _BRACKET_WITHIN.search(value) is not None
        and len(_OTHER_THAN_ALNUM.sub("", WORD_IN.sub("", value))) * 2 > len(bare)
    )


def is_shuffled(value: str) -> bool:
    """Whether the value has ten or more letters whose case changes repeatedly, unlike in names (`xLsEsCnXeQNM`)."""
    letters = "".join(_LETTERS.findall(value[:64]))
    left = "".join(_LETTERS.findall(WORD_IN.sub("", value[:64])))
    return len(letters) >= 10 and _RISES.subn("", letters)[1] >= 3 and len(left) * 2 >= len(letters)


_RISES = regex(r"(?<=[a-z])[A-Z]")


def is_words(value: str) -> bool:
    """Whether the value is joined words (`copper-Kettle`, `blueTigerLamp`), none of which describes a field, a type or a
    placeholder.
    """
    if _WORDS_JOINED.fullmatch(value) is None or len(value) < 8:
        return False
    return not any(_is_naming(word.lower()) for word in _WORD_OF_WORDS.findall(value) if len(word) > 2)


_PHRASE = regex(r"[a-z]{3,10}(?:([-_. ])[a-z]{3,10})(?:\1[a-z]{3,10}){1,6}")
_IN_PROSE = frozenset(LISTS["words of sentences"].split())


# Words of names, types, messages and options: a value made of them is not a chosen password.
NAMING = PLACEHOLDERS | NO_VALUES | _IN_PROSE | frozenset(LISTS["words of names"].split())
_NAMING_ENDS = ("able", "tion", "ted", "zed", "ing", "word", "token", "secret", "null", "error")


def is_passphrase(value: str) -> bool:
    """Whether the value looks like a generated passphrase: three or more joined words that do not form a sentence."""
    return _PHRASE.fullmatch(value) is not None and _IN_PROSE.isdisjoint(re.split("[-_. ]", value))


def reads_as_prose(value: str) -> bool:
    """Whether the value is words of a sentence joined by separators (`must-contain-8-chars`)."""
    return not _IN_PROSE.isdisjoint(re.split("[-_. ]", value.lower()))


def is_password(value: str) -> bool:
    """Whether a quoted value under a password's name is a password: anything except a placeholder, code or a sentence."""
    if not 4 <= len(value) <= 256 or is_stand_in(value, quoted=True):
        return False
    if " " in value:
        return is_passphrase(value) or (
            value.count(" ") <= 6 and is_odd(value.replace(" ", "")) and value[-1] not in ".:" and not _OF_PROSE.search(value)
        )
    return not (value.isalpha() and len(set(value)) == 1) and not _is_label(value)


def _is_label(value: str) -> bool:
    """Whether every word is typical of names and options: `user-password-field`, `min-length`."""
    return "-" in value and _LABEL.fullmatch(value) is not None and all(map(_is_naming, value.lower().split("-")))


_LABEL = regex(r"[A-Za-z]{2,14}(?:-[A-Za-z]{2,14}){1,5}")


def _is_naming(word: str) -> bool:
    return word in NAMING or word.endswith(_NAMING_ENDS)


_OF_PROSE = regex(r"(?i)\b(?&words of prose)\b")


def is_bare_password(value: str) -> bool:
    value = value.rstrip(".:!?,;)")
    return len(value) >= 4 and (
        (
            (is_odd(value) or is_shuffled(value) or (value.islower() and is_unspeakable(value)))
            and not is_stand_in(value)
            and not _TIME.match(value)
        )
        or is_passphrase(value)
    )


_TIME = regex(r"\d{1,4}[-:/.]\d{1,2}([-:/.]\d{1,4})*(?:T.*)?$|\d{1,3}$")


def is_odd(value: str) -> bool:
    """Whether the value is something other than a word, a name or words joined by hyphens."""
    return any(not letter.isalpha() and letter not in "_.-/'’" for letter in value)


def is_strong_password(value: str, min_chars: int = 4) -> bool:
    """Whether a value near a password's name is a password. Its shape must exclude other meanings."""
    bare = value.rstrip(".,;:?!)]}*_\"'`”»")
    if is_passphrase(bare):
        return True
    if value[:1] == "(" and ")" not in value:
        return False
    if not min_chars <= len(bare) <= 128 or is_stand_in(value if "(" in value else value.rstrip(").,:")) or TECHNICAL.match(bare):
        return False
    if bare.startswith("//"):  # the rest of an address
        return False
    if bare.isdigit() or _IDEOGRAPHS.search(bare):
        return bare.isdigit() and len(bare) >= 6 and min_chars <= 6
    special = re.search(r"\w[!@#$%^&*?~+=|§]+\w|[!@#$%^&*?~+|§]\d|\d[!#$%&*?]|[A-Za-z][#$%^&*]$", value.rstrip(".,;:)\"'"))
    odd = special is not None or DIGIT.search(bare) is not None or is_shuffled(bare)
    return _LETTER.search(bare) is not None and odd and "://" not in bare


_CHOSEN = regex(r"[_*!#+-]?\d{0,8}[A-Z][a-z]{2,14}(?:[._-][A-Za-z][a-z]{1,14})?\d{0,8}[-_!?#*$%+]{0,3}")


def is_chosen(value: str) -> bool:
    """Whether the value is a name with two or more digits and a sign at one end, like a chosen password (`1984Falcon_?`,
    `_Bergsee77-`).
    """
    return (
        _CHOSEN.fullmatch(value) is not None
        and sum(map(str.isdigit, value)) >= 2
        and not (value[0].isalnum() and (value[-1].isalnum() or value[-1] in "-?!"))
    ) or _CHOSEN_PLAINLY.fullmatch(value) is not None


_CHOSEN_PLAINLY = regex(r"[A-Z][a-z]{2,14}(?:\d{2,6}[!?#*$%+]{1,3}|[!?#*$%+]{1,3}\d{2,6})|\d{2,6}[A-Z][a-z]{3,14}[#*$%+_?!]{1,3}")


def is_stronger_password(value: str) -> bool:
    """Whether a value separated from its name only by a space is a password: letters and digits that do not form words."""
    if value.isalpha():
        return False
    bare = value.rstrip(".,;:?!)]}*_\"'`")
    if is_chosen(value):
        return True
    if not is_strong_password(value, 6) or bare.isdigit():
        return False
    if len(bare) == 6 and bare.isalnum() and turns(bare) >= 4 and bare.lower() != bare != bare.upper():
        return True
    signs = re.search(r"\w[!@#$%^&*?~+=§]+\w|[!#$%^&*?]", value) is not None
    if not mixed(bare) or len(bare) < 6 + (not signs) or bare.count("/") > 2:
        return False
    return (
        signs
        or _SHUFFLED.search(bare) is not None
        or is_unspeakable(bare)
        or (len(bare) >= 12 and entropy(bare) >= 3.2 and not is_wordy(bare))
    )


_DATE = regex(r"\d{4}-\d\d-\d\d(?:[T_ ]\d\d:?\d\d[\d:.,]*(?:Z|[+-]\d\d:?\d\d)?)?$")
_SHUFFLED = regex(r"\d[A-Za-z]+\d|[A-Za-z]{2}\d{2,}$")
_IDEOGRAPHS = regex(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def is_strong_key(value: str) -> bool:
    """Whether the value is random letters and digits."""
    value = value.strip("\"'`“”«»,;[]()")
    if (
        len(value) < 12
        or " " in value
        or value.startswith("arn:")
        or ISSUED_ID.match(value.lower())
        or EXAMPLE.search(value[:64])
        or value.startswith(("pk_live_", "pk_test_"))
        or _DATE.match(value)
        or not (mixed(value) or is_letters_drawn(value))
    ):
        return False
    if len(value) >= 24 and len(set(_SIGNS.findall(value))) >= 6:  # a salt of letters, digits and many special characters
        return True
    return entropy(value[:256]) >= 3.0 and not is_wordy(value) and not is_name(value) and not _is_code(value)


def is_wordy(value: str) -> bool:
    """Whether the value is a name and not a key: words and small numbers with separators (`my-db-secret-2`), a date, a version."""
    return len(value) < 60 and all(
        re.fullmatch(r"[A-Za-z]{0,14}\d{0,2}|\d{1,4}|v\d+", part) for part in re.split(r"[-_./:@#]", value)
    )


_SIGNS = regex(r"[^\w\s]")


# Pairs of letters that are rare within words, by their counts in 19,000 words of documentation.
_UNLIKELY = regex(
    r"(?=a[joq]|b[hknqvwxz]|c[bgjqwxz]|d[hjkqwz]|ej|f[bghjkqvwxz]|g[bjkqwxyz]|h[bdfghjkqvwxz]|i[hijquwy]|j[bcdfghjklmnpqrtvwxyz]|k[bcdfhjkmqvxyz]|l[hjqwxz]|m[ghjkqvwxz]|n[qxz]|o[hjqz]"
    r"|p[bjqvwxz]|q[a-tvwxyz]|r[hjqxz]|s[jxz]|t[jkqx]|u[hjkquvwxyz]|v[bdfghjklnpqrtuvwxyz]|w[bfgjkmpquvwxyz]|x[bfghjknoqruvwxyz]|y[fghjkquvwxyz]|z[bcdfghjklmnpqrstuvwxyz])"
)


def is_unspeakable(value: str) -> bool:
    """Whether the value is eight or more letters and digits that do not form words (`fujpdkwomakz`)."""
    return 8 <= len(value) <= 64 and value.isalnum() and len(_UNLIKELY.findall(value.lower())) >= 2


def is_phrase(value: str) -> bool:
    """Whether the value is a chosen secret of words with two digits or a sign, and not the name of a thing (`shop-db-2`)."""
    signs = len(DIGIT.findall(value)) >= 2 or re.search(r"[!#$%&*+=?@^~]", value) is not None
    return " " not in value and len(value) >= 8 and signs and is_strong_password(value, 8)


_WORD_OF_NAME = regex(r"[A-Z]?[a-z]{3,14}(?![a-z])")


def is_name(value: str) -> bool:
    """Whether the value is words in camel case with few digits (`DeepseekV2ForCausalLM`)."""
    digits = sum(map(str.isdigit, value))
    return len(value) < 80 and digits * 8 <= len(value) and len(_WORD_OF_NAME.sub("", value)) * 3 <= len(value) + 2


def is_fingerprint(value: str) -> bool:
    """Whether the value is the id of a public key: 40 hex digits in capitals, or the last 16 of them."""
    return _FINGERPRINT.fullmatch(value.rstrip(".,;:)")) is not None


_FINGERPRINT = regex("[0-9A-F]{16}|[0-9A-F]{40}")


def is_long_key(value: str) -> bool:
    value = value.rstrip(".,;:)")
    return (
        len(value) >= 20
        and is_strong_key(value)
        and re.fullmatch(r"[\w.~+=-]+|(?=.{0,40}[A-Z])(?=.{0,40}[a-z])[\w+=]{1,39}(?:/[\w+=]{0,39}){1,3}", value) is not None
    )


def is_placeholder(value: str) -> bool:
    return value.lower() in PLACEHOLDERS or _TEMPLATE.match(value) is not None or _HOLE.search(value) is not None
