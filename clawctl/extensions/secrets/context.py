# ruff: noqa: E501 - expressions stay lines
"""Finds opaque text near a word that names a secret, whatever is between the two.

The other rules expect specific forms of joining a value to its name. This rule looks for text that is no word, path, version, date
or identifier. It then looks for a name in the same clause, in the label or question above, or in the comment after it. The less the
text looks like a secret by itself, the closer its name must be.
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache

from clawctl.extensions.secrets.names import NAMES_AT, NOT_KEY, Named, name_positions, named_at
from clawctl.extensions.secrets.text import BEYOND, SPACES, Anchors, Span, Text, phrases, regex, tried_at
from clawctl.extensions.secrets.values import (
    EXAMPLE,
    UUID_ALONE,
    WORD_IN,
    entropy,
    is_chosen,
    is_dense,
    is_fingerprint,
    is_letters_drawn,
    is_name,
    is_passphrase,
    is_random,
    is_shuffled,
    is_stand_in,
    is_stronger_password,
    is_unspeakable,
    is_wordy,
    mixed,
    turns,
)
from clawctl.extensions.secrets.vocabulary import IDS, NAMES_OF_IDS, NO_VALUES

_OTHERS_OF_NAMES = Anchors(
    "mnemonic", "psw", "login", "log in", "wi-fi", "wifi", "wlan", "hotspot", "unlock", "sign in", "cred", *phrases("logins"), "seed", "sk =", "jwt.", "hmac", "createcipher", "createdecipher", "aes", "fernet", "secretbox", "encrypt", "decrypt", "blowfish", "chacha", "signer", "hs256", "secretkeyspec", "securitykey", "hkdf", "superuser", "create_user", "createuser", "adduser", "add_user", "signup(", "register(", "oauth", "username_pw", "credentials("
)  # fmt: skip
_BEFORE, _BEHIND = 260, 64  # characters that are searched for a name
_MAX_WORDS = 8  # words before a text that may name it
_TOKEN = regex(rf"""[^{SPACES}"'`“”«»„<>|\\]{{6,400}}""")
_ENDS_TOKEN = "\"'`“”«»„<>|\\"
_ODD = regex(r"[0-9A-Z](?:(?<=[0-9])|(?<=[a-z].))")  # a digit, or a capital after a lower-case letter
_ASSIGNED = regex(r"[A-Za-z][A-Za-z_.-]{2,40}(?:=|:(?!//))(?=[^=:])|(?:[A-Za-z]{1,12}[.(]){1,3}")  # `name=` before a value
RANDOM, TYPED, PLAIN, PHRASE = 4, 3, 2, 1  # how much a text looks like a secret
_FARTHEST = {RANDOM: 120, TYPED: 80, PLAIN: 48, PHRASE: 32}  # maximum distance in characters between a name and its value


@tried_at(NAMES_AT, _OTHERS_OF_NAMES, BEYOND)
def near_names(piece: Text) -> Iterator[Span]:
    """Find opaque texts that a nearby word names as a secret."""
    text = piece.text
    words = _word_positions(piece)
    if not words:
        return
    names = _Names(piece)
    reached = 0
    for first, last in _windows(words, len(text)):
        if not _ODD.search(text, first, last) and text.count("-", first, last) < 3:
            continue
        for token in _TOKEN.findall(text, max(first, reached), last):
            if not (graded := _graded(token)):
                continue
            grade, begin, length = graded
            reached = _place_of(text, token, max(first, reached))
            start, end = reached + begin, reached + begin + length
            reached += len(token)
            if any(
                _announces(text, named, start, end, grade)
                for at in words[max(0, bisect_left(words, start) - _MAX_WORDS) : bisect_left(words, end + _BEHIND)]
                if start - at <= _BEFORE and (named := names.at(at)) is not None
            ):
                yield Span(start, end, "password")


@lru_cache(maxsize=1 << 14)
def _graded(token: str) -> tuple[int, int, int] | None:
    """Return how much the bare text of a token looks like a secret, its start and its length. Cached, because most tokens recur."""
    if not (_ODD.search(token) or token.count("-") >= 3) or ")=(" in token:  # `Key (id)=(7710245)`, of a database
        return None
    start, end = _bare(token, 0, len(token))
    grade = likeness(token[start:end])
    return (grade, start, end - start) if grade else None


def _place_of(text: str, token: str, at: int) -> int:
    """Return the position of the token at or after `at`. The same letters may also occur inside a longer token."""
    position = text.find(token, at)
    for _ in range(8):
        if position <= at or text[position - 1] in _ENDS_TOKEN or text[position - 1].isspace():
            break
        position = text.find(token, position + 1)
    return position if position >= 0 else text.find(token, at)


def _word_positions(piece: Text) -> list[int]:
    others = _OTHERS_OF_NAMES.positions(piece)
    return sorted({*name_positions(piece), *others}) if others else name_positions(piece)


def _windows(words: list[int], length: int) -> Iterator[tuple[int, int]]:
    """Return the parts of a text that are close to a name."""
    first = last = 0
    for at in words:
        if at - _BEHIND - 200 > last:
            if last:
                yield first, last
            first = max(0, at - _BEHIND - 40)
        last = min(length, at + _BEFORE)
    yield first, last


class _Names:
    """The names found in a piece. Each word is examined once, and only if opaque text is near it."""

    def __init__(self, piece: Text) -> None:
        self._piece = piece
        self._known: dict[int, Named | None] = {}

    def at(self, at: int) -> Named | None:
        if at not in self._known:
            self._known[at] = self._read_name(at)
        return self._known[at]

    def _read_name(self, at: int) -> Named | None:
        text, lower = self._piece.text, self._piece.ascii
        named = named_at(self._piece, at)
        if named is None and (other := _OTHER_NAME.match(lower, at)) and not lower[at - 1 : at].isalpha():
            if other[0].startswith("key") and (
                _OTHER_KEY.search(text, max(0, at - 40), at) or NOT_KEY.search(text, max(0, at - 24), at)
            ):
                return None
            named = Named(at, other.end(), other[0], "password" if other["login"] or other["call"] else "key")
        if (
            named is None
            or lower.endswith("checksum/", 0, at)
            or _IN_BASE64.match(text, max(0, at - 24))
            or _NO_NAME.fullmatch(named.name)
            or _NO_VALUE_OF.match(lower, named.end)
        ):
            return None
        return named


_OTHER_NAME = regex(
    r"(?P<login>credentials?|creds?|log ?ins?(?:to)?|log into|logon|sign ?in|wi-?fi|wlan|hotspot|unlock|psw|(?&logins)s?)(?![a-z])|keys?(?![a-z])|mnemonic|seed(?![a-z])|sk(?= ?=)"
    r"|(?P<call>(?:jwt\.(?:sign|verify|encode|decode)|hmac|create(?:de)?cipher|aes|fernet|secretbox|encrypt|decrypt|blowfish|chacha|signer|hs256|secretkeyspec|securitykey|hkdf|superuser|create_?user|add_?user|signup|register|oauth\w{0,8}|username_pw_set|set_?credentials)[\w.:]{0,24}\()"
)
_OTHER_KEY = regex(r"(?i)\b(?:cache|gpg|pgp|rsa|dsa|ed25519|public|primary|host|ssh|object|s3|redis|press)\b[^\n]{0,24}$")
_IN_BASE64 = regex(r"[A-Za-z0-9+/]{48}")
_NO_NAME = regex(r"(?i)passe?|part|bearer|auth|keys|(?:user\.)?signing_?key")
_NO_VALUE_OF = regex(
    rf"[ _-](?:{'|'.join(sorted(NO_VALUES - {'message', 'text', 'reset', 'email', 'for', 'on', 'in', 'data', 'account', 'request'}, key=len, reverse=True))})s?\b"
)


def _bare(text: str, start: int, end: int) -> tuple[int, int]:
    """Strip the surrounding punctuation and a name that is joined to the value."""
    while (start < end and text[start] in "([{,;:") or text.startswith("**", start):
        start += 1
    if joined := _ASSIGNED.match(text, start, end):
        start = joined.end()
    while end > start and text[end - 1] in ".,;:)]}*":
        end -= 1
    return start, end


@lru_cache(maxsize=4096)
def likeness(value: str) -> int:
    """Return how much a text looks like a secret by itself.

    `RANDOM`: like a generated key. `TYPED`: with special characters, like a password. `PLAIN`: letters and digits. `PHRASE`: a
    passphrase. 0: a word, a name, a path, a date, a version or code.
    """
    if value.count("-") >= 3 and is_passphrase(value):
        return PHRASE
    if (
        not 6 <= len(value) <= 300
        or _CALLED.search(value)
        or _KNOWN.match(value)
        or UUID_ALONE.fullmatch(value)
        or EXAMPLE.search(value[:64])
    ):
        return 0
    if is_stand_in(value):
        return 0
    if is_chosen(value):
        return TYPED
    if _is_identifier(value) or _is_path(value):
        return 0
    run = value.rstrip("=")
    if len(run) >= 16 and _ALPHABET.fullmatch(run) and not is_wordy(run) and not is_name(run):
        core = _BETWEEN.sub("", run)
        drawn = _HEX.fullmatch(core) is not None or is_random(core) or is_dense(core) or turns(core[:128]) * 4 >= len(core[:128])
        named = len(run) < 24 and _CAPITAL_WORD.search(run) is not None  # `Ed25519PrivateKey`
        if (mixed(core) and entropy(run[:128]) >= 3.0 and drawn and not named) or is_letters_drawn(core):
            return RANDOM
    if (value[0] in "-/\\@" and value[1:2] == value[0]) or _HOST.match(value):
        return 0
    bare = value.lstrip("#!%&*-_.+~^=$?")
    drawn = (
        (is_shuffled(value) and value.isalpha())
        or (is_unspeakable(value) and (mixed(value) or (value.islower() and len(value) >= 10)))
        or _is_short_key(value)
    )
    if not (is_stronger_password(bare) or drawn or (_CHOSEN.fullmatch(bare) is not None)):
        return 0
    return TYPED if _SIGN.search(value) and len(value) >= 8 else PLAIN


def _is_short_key(value: str) -> bool:
    """Whether the value has eight or more letters and digits in both cases and words make up at most half of it (`ofuYx43r`)."""
    return (
        8 <= len(value) <= 32
        and value.isalnum()
        and value[1:] != value[1:].lower()
        and value != value.upper()
        and len(WORD_IN.sub("", value)) * 2 >= len(value)
        and not _LONG_WORD.search(value)
        and turns(value) >= 2
    )


_CAPITAL_WORD = regex(r"[A-Z][a-z]{5}")
_LONG_WORD = regex(r"[A-Za-z][a-z]{4}")
_HEX = regex(r"(?:0x)?[0-9a-fA-F]{32,256}")
_CALLED = regex(
    r"[{}]|&&|=!|\);|\)\?|\w=>|\w\($|\w\(\w{1,24}[,)]|=this\b|;(?:let|var|const|return)$|[-+*/=][A-Za-z_]\w*%|\w\*\w+\+|\*\*|²|[*•]{3}|\(\)|\)\.|^[a-z]\w{0,2}=\d[\d,.]*$"
)
_CHOSEN = regex(r"[A-Z][a-z0-9]{2,14}[._-](?:[A-Za-z][a-z]{1,14})?\d{2,6}")  # `Pumpkin_435`
_ALPHABET = regex(r"[A-Za-z0-9+/_.~-]+")
_BETWEEN = regex(r"[+/_.~-]")
_SIGN = regex(r"[!@#$%^&*?~+=§](?!$)|[!#$%&*]$")
# Public keys, checksums, ids with a prefix, versions, dates, sizes, addresses and ciphertext.
_KNOWN = regex(
    r"(?i)(?:ghsa(?:-[0-9a-z]{4}){3}|(?:cwe|rustsec|pysec|go|dsa|usn|rhsa)-\d{1,4}[-:\d]*)$|(?:sha\d{1,3}|md5|h1|zh)[-:=]|AAAA[BCE][23][Nn]|ecdsa-|ssh-|enc\[|ag[a-z0-9+/]{100}|v?\d+(?:\.\d+)+|\d{4}-\d\d|[1-9]\d{0,3}[x×:/]\d|[\w.+-]+@[\w-]+\.|https?:|0x[0-9a-f]{1,16}$|(?:\d{1,3}\.){3}\d|[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,}|u\+[0-9a-f]|&#?\w+;|"
    r"(?:[a-z]{2,}-){1,6}(?:[a-z0-9]{5,10}(?:-[a-z0-9]{5})?|[0-9a-f]{32,64})$|(?:[a-z][a-z0-9.]*[-_]){2,6}[0-9a-f]{32,64}$|(?:utf|iso|cp|rfc|cve|pep|gpt|claude|python|node|sha|md|aes|rsa|ed|hs|rs|es|ps|ipv|win|x|arm|amd|i)-?\d[\w.-]{0,6}$"
)
_SEPARATOR = regex(r"[._:>/-]{1,2}")
_WORD = regex(r"[A-Za-z]+\d{0,3}|\d{1,4}|")
_EXPRESSION = regex(r"[a-z_]{2,40}(?:\*\*|²|[+*-](?=\d+$))|[A-Za-z]\w{1,40}(?:[=\[,]\w{0,40}){1,4}$|[a-z_]{4,40}²")


def _is_identifier(value: str) -> bool:
    """Whether the value is an identifier: words with few digits, joined by case, underscores, dots or colons."""
    bare = value.removesuffix("()").strip("$_")
    parts = _SEPARATOR.split(bare)
    if _EXPRESSION.match(value) or _CONSTANT.fullmatch(value):
        return True
    if "." in bare and _DOTTED.fullmatch(bare) and len(WORD_IN.sub("", bare)) * 2 < len(bare):  # `ed25519.Ed25519PrivateKey`
        return True
    if len(parts) == 1:
        return _CAMEL.fullmatch(bare) is not None
    if bare[:1].isupper() and not bare.isupper() and sum(map(str.isdigit, bare)) >= 2 and bare[-1].isdigit():
        return False  # `Pumpkin_435` is a typical chosen password
    return len(parts) <= 16 and all(_WORD.fullmatch(part) and not is_shuffled(part) for part in parts)


_HOST = regex(r"@[\w-]{1,63}(?:\.[\w-]{2,63}){1,5}(?:[/:?]|$)")  # the rest of a web address
_CONSTANT = regex(r"(?=\w*?[A-Z]{4})[A-Z]{2,16}\d?(?:_[A-Z0-9]{1,16}){1,6}")
_DOTTED = regex(r"[a-z_]\w{0,40}(?:\.[A-Za-z_]\w{0,60}){1,6}")
_CAMEL = regex(
    r"[A-Z]{2,4}\d(?:[A-Z][a-z]{2,20}){1,6}|[A-Za-z]+[_-]?\d{1,2}|[a-z]+\d?(?:[A-Z][a-z]{1,20}){1,8}\d?|(?:[A-Z][a-z]{1,20}){2,8}\d?"
)


def _is_path(value: str) -> bool:
    parts = value.split("/")
    return (
        len(parts) > 1
        and sum(len(part) <= 14 and (part.isalpha() or is_wordy(part)) for part in parts if part) * 2 >= len(parts) - 1
    ) or _FILE.search(value) is not None


_FILE = regex(r"\.(?:[a-z]{2,5}|[a-z]{1,2}\d?|7z|mp[34])$")


def _announces(text: str, named: Named, start: int, end: int, grade: int) -> bool:
    """Whether a name marks the text from `start` to `end` as its value."""
    if named.begin >= end:
        following = text[end : named.begin]
        if named.kind == "password" and (_IS_THE.match(following) or (grade >= TYPED and _COMMENT.match(following))):
            return True
        return grade == RANDOM and named.kind != "part" and _names_before(text, start, end, named)
    if named.end > start or named.begin >= start:
        return False
    between = text[named.end : start]
    if named.kind == "part" and not (grade == RANDOM and "\n" in between and _REPL.match(_line_before(text, named))):
        return False
    if _OTHER_LABEL.search(between[-40:]) and _is_other(between):
        return False
    if "\n" in between:
        return _is_below(text, between, named, start, end, grade)
    if named.name.endswith("("):  # call of a cipher or signature, whose key is a literal
        quoted = _QUOTE.search(between[-1:]) is not None and not _FEW_BYTES.fullmatch(text[start:end])
        return len(between) <= _FARTHEST[RANDOM] and "))" not in between and quoted
    if len(between) > _FARTHEST[grade] or _SENTENCE_END.search(between):
        return False
    if grade == RANDOM:
        if named.kind == "key" and between == " " and is_fingerprint(text[start:end]):
            return False
        if named.kind == "key" and _HEX.fullmatch(text[start:end]) and _DIGEST_OF.search(text, max(0, named.begin - 60), start):
            return False
        if len(between) <= 40 and not _HEX.fullmatch(text[start:end]):
            return True
        return (
            named.kind == "password"
            or _QUOTE.search(between[-3:]) is not None
            or _JOINED.search(between) is not None
            or _BETWEEN_THEM.fullmatch(between) is not None
        )
    if ("|" in between and grade <= PLAIN) or (
        grade == PHRASE and "phrase" not in named.name.lower() and not between.endswith(('"', "'", "`"))
    ):
        return False
    if named.kind == "key" and not (end - start >= 10 and (grade == TYPED or is_unspeakable(text[start:end]))):
        return False
    return _JOINED.search(between) is not None or (between == " " and named.kind == "password" and "log" not in named.name)


# Words that may occur between a word like token and its hex value: `try this token instead …`, `token (read only) …`.
_BETWEEN_THEM = regex(r"(?i)[^\n]{0,2}|[ ,:]{0,2}(?:\([^()\n]{1,24}\)|(?&between a name and its value))[ ,:]{1,2}")
_FEW_BYTES = regex(r"[0-9a-f]{6,12}")  # of a test vector, or the beginning of a digest
_DIGEST_OF = regex(r"(?i)x\.?509|\bcert(?:ificate)?s?\b|fingerprint|thumbprint|checksum|digest|\bhash(?:ed|es)?[ _-]")
_SENTENCE_END = regex(r"[.!?…;][)\"']?[ ]+[\"'(]?[A-ZÀ-Þ]|[{}]")
_QUOTE = regex(r"[\"'`“„«]")
# What may directly precede a value: a punctuation mark, or a verb such as "is".
_JOINED = regex(
    r"""(?ix)(?:[:=→>"'`“„«*_(|/,]|->|[-–—](?=[ ])|\b(?:(?&is)|(?&are)|(?&with)|be|now|as|ora|use|try|enter|type|got|gave|set|one)\b:?
    |[:=][ ]{0,2}[\w.@+-]{2,40}[ ,/|]{1,4})[ ]{0,3}[*_"'`(]{0,3}$"""
)
_OTHER_LABEL = regex(
    r"([A-Za-z][\w-]{0,30})[\"'`]{0,2}\s{0,3}(?:[:=#,]|is\b)?\s{0,3}[\"'`#]{0,2}$|((?i:uuid|id|hash|sha\d*|md5|commit|digest))\([\"'`]?$"
)


@lru_cache(maxsize=4096)
def _is_other(between: str) -> bool:
    """Whether the last word before a value marks it as an id, a hash or other data that is not secret."""
    label = _OTHER_LABEL.search(between[-40:])
    if label is None:
        return False
    parts = [part for part in _PART.findall(label[1] or label[2]) if not part.isdigit()]
    return bool(parts) and (last := parts[-1].lower()) not in _OPEN and (last in NAMES_OF_IDS or last in IDS or last in _OTHERS)


_PART = regex(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_OPEN = frozenset((
    "type", "data", "message", "text", "user", "admin", "client", "server", "account", "ca", "al", "in", "pip", "ref", "customer",
    "deploy", "app", "test", "call", "web", "value", "mail", "email", "service", "login", "agent", "dev", "staging",
))  # fmt: skip
_OTHERS = frozenset((
    "href", "arn", "asn", "certificate", "cert", "thumbprint", "pubkey", "salt", "iv", "mac", "serial", "ticket", "bucket", "sha",
    "prefix", "suffix", "line", "column", "address", "addr", "signature", "by", "than", "contains", "least",
))  # fmt: skip


def _names_before(text: str, start: int, end: int, named: Named) -> bool:
    """Whether a name after the value refers to it: `let k = "…"; // api key of the shop`, `… <- token for staging`, `… (deploy
    token)`.
    """
    between = text[end : named.begin]
    if _WRITTEN_TO.match(between):
        return True
    words = {word.lower() for word in _PART.findall(between)}
    return (
        "\n" not in between
        and _POINTS_BACK.match(between) is not None
        and words.isdisjoint(NAMES_OF_IDS)
        and not _is_other(text[max(0, start - 40) : start])
    )


_IS_THE = regex(r"[\"'`*]{0,2}[ ](?:\(|(?:is|was|should be|will be|as)[ ])(?:the|my|our|your|a|that)[ ](?:[\w-]{1,16}[ ]){0,3}$")
_WRITTEN_TO = regex(r"[\"'`]{0,2}[ ]{1,2}>{1,2}[ ]?[\w./~-]{0,48}$")  # the name of the target file is the name of the secret
_COMMENT = regex(r"[\"'`)]{0,2}(?:\{\w{1,12}\})?[;,]?[ ]{1,4}(?://|#|;|--|/\*)[ ][^.\n]{0,32}$")
_POINTS_BACK = regex(
    r"[\"'`)]{0,2}[;,]?[ ]{0,4}(?:(?://|#|/\*|--|<!--|<-|<=|←|\()[^.\n]{0,48}|(?:is|as|=)[ ](?:the|my|our|your|a|an)?[ ]?(?:[\w-]{1,16}[ ]){0,2})$"
)


def _is_below(text: str, between: str, named: Named, start: int, end: int, grade: int) -> bool:
    """Whether the value is alone on its line, below a line that announces it."""
    head, *lines = between.split("\n")
    line_end = text.find("\n", end, end + 8)
    rest = text[end : line_end if line_end >= 0 else end + 8]
    is_question = "?" in head or _ASKING.search(text, max(0, named.begin - 60), named.begin) is not None
    decoration = _DECORATION if is_question and grade != RANDOM else _PLAIN_DECORATION
    if decoration.fullmatch(lines[-1]) is None or _AFTER.fullmatch(rest) is None:
        return False
    lines_between = [line for line in lines[:-1] if not _EMPTY.fullmatch(line)]
    if len(lines_between) > (1 if grade <= PLAIN else 2) or any(len(line) > 70 for line in lines_between) or len(head) > 90:
        return False
    before = _line_before(text, named)
    if named.kind == "password" and len(lines) <= 2 and _TITLE.fullmatch(before) and _REST_OF_TITLE.fullmatch(head):
        return True
    if _REPL.match(before):
        return grade > PLAIN
    return (
        is_question
        or _VALUE_IS.search(lines[-1]) is not None
        or _ANNOUNCING.search(head) is not None
        or _HEADING.match(before) is not None
    )


# What may precede a value on its line: quotation, list and table marks, speaker and time, and a few words.
_DECORATION = regex(
    r"""[\s>*_•`"'|$#:-]*(?:\d{1,2}[.)][ ]{1,3})?(?:[\[(][^\])\n]{1,24}[\])][ ]{0,2})?(?:<?[\w.@-]{1,20}(?:[ ]\w{1,16})?>?:[ ]{1,2})?(?:[\w'’]{1,12}[,:]?[ ]){0,5}["'`*_]{0,3}"""
)
_PLAIN_DECORATION = regex(
    r"""(?:##\[\w{1,12}\])?[\s>*_•`"'|$#:-]*(?:\d{1,2}[.)][ ]{1,3})?(?:[A-Za-z]{1,6}[:,][ ]{0,2}|(?:-[ ])?(?:key|value):[ ]{1,2}|Out\[\d{1,4}\]:[ ]|=>[ ]|(?i:(?:new|generated|temporary|your)?[ ]?(?:value|result|output|one|answer)(?:[:=]|[ ]is)[ ]{0,2}))?["'`*_]{0,3}"""
)
_ASKING = regex(r"(?i)\b(?&asks)\b[^\n]{0,50}$")


def _line_before(text: str, named: Named) -> str:
    return text[text.rfind("\n", max(0, named.begin - 120), named.begin) + 1 : named.begin]


_REPL = regex(
    r"(?:>>>|In \[\d{1,4}\]:|irb[^\n>]{0,30}>|pry[^\n>]{0,30}>|iex[^\n>]{0,30}>|(?:js|node|psql|mysql|redis|sqlite|ghci|scala|jshell|\w{1,16}=#)>?|\u03bb)[ ]"
)
# `Wi-Fi password for guests`
_TITLE, _REST_OF_TITLE = regex(r"(?:[A-Z][\w-]{1,14}[ ]){0,3}"), regex(r"(?:[ ][\w'’-]{1,12}){0,3}[ ]?")
_VALUE_IS = regex(r"(?i)\b(?:value|result|output)(?:[:=]|[ ]is)")
_AFTER = regex(r"""["'`*_|.,;!\s]*""")
_EMPTY = regex(r"""[\s>|`*_=+-]*(?:```\w{0,12})?[\s|]*""")
_ANNOUNCING = regex(r"(?i)[:?=]\s*[*_`\"']{0,2}\s*$|\b(?:below|following|here|asked|requested|attached)\b|^[\"'*_`)\s]*$")
_HEADING = regex(r"(?i)[\s>*_-]*(?:#|(?&subject)|re:|fwd?:|q:|question\b)")
