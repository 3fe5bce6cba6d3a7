"""Finds stored password hashes: a password can be guessed offline from its hash."""

from collections.abc import Iterator

from clawctl.extensions.secrets.text import Anchors, Span, Text, regex, tried_at

_CRYPT = regex(
    r"\$(?:(?:1|5|6|7|y|gy|apr1|md5|sha1)\$(?:rounds=\d{1,9}\$)?[\w./,=+-]{1,64}(?:\$[\w./+=-]{1,64})?\$[\w./+=]{20,128}|2[abxy]\$\d\d\$[A-Za-z0-9./]{53}|(?:argon2(?:id|i|d)|scrypt|pbkdf2(?:-\w{2,8})?)\$[\w./+=,-]{1,64}(?:\$[\w./+=,-]{1,160}){1,3})"
)
_NAMED = regex(
    r"(?i)(?:pbkdf2_\w{3,8}\$\d{2,8}\$|(?:scrypt|pbkdf2):[\w:]{1,24}\$|bcrypt_sha256\$|argon2\$argon2\w{1,2}\$|\{(?:ssha\d{0,3}|smd5|sha\d{0,3}|md5|crypt|pbkdf2[\w-]{0,8}|x-pbkdf2)\})[\w./+=$,-]{20,300}|scram-sha-\d{1,3}\$\d{2,8}:[\w+/=]{8,64}\$[\w+/=]{20,80}:[\w+/=]{20,80}"
)
_NAMES = Anchors(
    "pbkdf2", "scrypt:", "bcrypt_sha256$", "argon2$", "{ssha", "{smd5", "{sha", "{md5", "{crypt", "{x-pbkdf2", "scram-sha-"
)


_CRYPTS = Anchors(
    "$1$", "$5$", "$6$", "$7$", "$y$", "$gy$", "$apr1$", "$md5$", "$sha1$", "$2a$", "$2b$", "$2x$", "$2y$", "$scrypt$", 
    "$argon2", "$pbkdf2",
)  # fmt: skip


@tried_at(_CRYPTS, _NAMES, to_value_end=False)
def hashed_passwords(piece: Text) -> Iterator[Span]:
    """Find `$6$…` of a shadow file, `$2b$12$…`, `$argon2id$…`, `{SSHA}…`, and the hashes of web frameworks."""
    text = piece.text
    done = 0
    for at in _CRYPTS.positions(piece):
        if at >= done and (match := _CRYPT.match(text, at)):
            done = match.end()
            yield Span(*match.span(), "password")
    for at in _NAMES.positions(piece):
        if match := _NAMED.match(text, at):
            yield Span(*match.span(), "password")
