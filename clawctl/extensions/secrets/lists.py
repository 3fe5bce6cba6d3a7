# ruff: noqa: E501 - expressions stay lines
"""Finds one-time codes in sentences, and lists whose heading marks each value as a secret."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.text import Anchors, Span, Text, positions_of
from clawctl.extensions.secrets.values import is_bare_password, is_stand_in

_MAX_LINES = 32
_HEADED = Anchors("stringdata:", "chpasswd:", "chpasswd <<")
_INDENT = re.compile(r"[ \t]{0,40}")
# `connection: …` in a manifest, `- root:…` and `ubuntu:…` of chpasswd. A nested heading has no value.
_LINE = re.compile(
    r"""(?P<indent>[ \t]{0,40})(?:-[ ])?["']?[\w.@-]{1,80}["']?:[ \t]{0,8}["']?(?P<value>[^\s"']{0,512})["']?[^\n]{0,200}(?:\n|$)"""
)


def in_lists(piece: Text) -> Iterator[Span]:
    """Find the values below `stringData:` of a Kubernetes secret, and the logins passed to `chpasswd`."""
    text = piece.text
    for at in () if _HEADED.absent(piece) else _HEADED.positions(piece):
        line = max(text.rfind("\n", max(0, at - 200), at) + 1, at - 200)
        indent = _INDENT.match(text, line)
        outer = indent.end() - line if indent and indent.end() <= at else 0
        open_end = piece.ascii.startswith("chpasswd <<", at)
        place = text.find("\n", at, at + 200) + 1
        for _ in range(_MAX_LINES if place else 0):
            entry = _LINE.match(text, place)
            if entry is None or (not open_end and len(entry["indent"]) <= outer):
                break
            value = entry["value"]
            if len(value) >= 5 and value not in ("false", "true") and is_bare_password(value) and not is_stand_in(value):
                yield Span(*entry.span("value"), "password")
            place = entry.end()


_IS_YOUR = re.compile(
    r"(?<![\w.-])(?:[A-Z]{1,3}-)?(?P<value>\d{3,4}[ -]?\d{1,4})[>)\]*`\"']{0,2}[ ](?:is your|is the|ist (?:dein|ihr)e?|est votre|es (?:tu|su)|è il tuo|é o seu)[ ](?:[\w.'-]{1,24}[ ]){0,4}?(?:[\w-]{0,20}code|[\w-]{0,20}otp|pin|passcode|password|código|codice|kennwort|passwort|one-time)\b",
    re.IGNORECASE,
)
# Words for a one-time code, in lower case. In an anchor, `?` stands for a non-ASCII letter.
_CODES = Anchors(
    "code de ", "code d'", "code d?", "c?digo de ", "codice di ", "verificatiecode", "beveiligingscode", "best?tigungscode", "sicherheitscode", "einmalcode",
    "freigabecode", "zugangscode", "do?rulama kodu", "onay kodu", "kod weryf", "kod potw", "kod dost", "verifieringskod", "bekr?ftelseskode", "bekreftelseskode",
    "vahvistuskoodi", "ov??ovac? k?d", "m? x?c ", "kode verifikasi",
)  # fmt: skip
_CODES_BEYOND = (
    "暗証番号", "пин", "pin码", "pinコード", "验证码", "驗證碼", "校验码", "動態碼", "动态码", "认证码", "認証コード", "確認コード", "認証番号", "ワンタイムパスワード", "인증번호", "인증", "확인", "код ",
    "رمز ", "सत्यापन", "ओटीपी", "קוד ", "κωδικός", "รหัสยืนยัน",
)  # fmt: skip
_CODE_IS = re.compile(
    r"(?:暗証番号|пин-?[ ]?код|pin码|pinコード|验证码|驗證碼|校验码|動態碼|动态码|认证码|認証コード|確認コード|認証番号|ワンタイムパスワード|인증번호|인증[ ]?코드|확인[ ]?코드|код (?:подтверждения|доступа|безопасности|підтвердження)|رمز (?:التحقق|التأكيد|الدخول)|सत्यापन कोड|ओटीपी|קוד (?:אימות|האימות)|κωδικός επαλήθευσης|รหัสยืนยัน"
    r"|code (?:de |d['’])(?:vérification|verification|sécurité|securite|validation|confirmation|accès|acces)|código de (?:verificación|verificação|seguridad|segurança|confirmación|confirmação|acceso|acesso)|codice di (?:verifica|sicurezza|conferma|accesso)"
    r"|verificatiecode|beveiligingscode|bestätigungscode|sicherheitscode|einmalcode|freigabecode|zugangscode|doğrulama kodu|onay kodu|kod (?:weryfikacyjny|potwierdzający|dostępu)|verifieringskod|bekræftelseskode|bekreftelseskode|vahvistuskoodi|ověřovací kód|mã xác (?:minh|nhận)|kode verifikasi)"
    r"[ \t:：=\[【「(]{0,4}(?:(?:は|が|是|为|為|은|는|ist|lautet|is|est|es|è|é|jest|to|это|هو|הוא|है|είναι|คือ)[ \t:：]{0,2})?[\[【「\"'`*]{0,3}(?P<value>\d{3,4}[ -]?\d{1,4})(?![A-Za-z0-9_%]|[.-]\d)"
)


_IS_BEHIND = re.compile(r"\d[>)\]*`\"']{0,2}[ ](?=(?:is|ist|est|es|è|é)[ ])", re.IGNORECASE)


def in_codes(piece: Text) -> Iterator[Span]:
    """Find one-time codes: `G-558537 is your verification code`, `验证码:355778`, `Votre code de vérification : 190 384`."""
    text = piece.text
    for joined in _IS_BEHIND.finditer(text):
        at = joined.end() - 1
        for match in _IS_YOUR.finditer(text, max(0, at - 16), min(len(text), at + 140)):
            if match.end("value") <= at < match.end():
                yield Span(*match.span("value"), "password")
    positions = [] if _CODES.absent(piece) else _CODES.positions(piece)
    if piece.beyond:
        positions += [at for word in _CODES_BEYOND for at in positions_of(piece.lower, word)]
    for at in positions:
        if code := _CODE_IS.match(piece.lower, at):
            yield Span(*code.span("value"), "password")
