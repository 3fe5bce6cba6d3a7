# ruff: noqa: E501 - expressions stay lines
"""Finds logins in notes and messages: `ann@mail.example / Otter12`, `Netflix: ann / Otter12`, `login: ann, Otter12`."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.text import Anchors, Span, Text, positions_of
from clawctl.extensions.secrets.values import DIGIT, TECHNICAL, is_stand_in, is_words, mixed

_MAX_PAIRS = 400  # maximum number of pairs examined per piece
_USER = r"(?P<user>[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{2,24}){1,3}|\+?\d[\d ()-]{5,18}\d|[\w.@+-]{2,48})"
_VALUE = r"[\"'`«„“]?(?P<value>[^\s\"'`|<>«»„“”]{5,64})"
_SEPARATOR = r"[ \t]{0,3}(?:/|\||·|–|—|-|->|→|=>)[ \t]{1,3}|[ \t]{1,3}(?:/|\||->|→)[ \t]{0,3}|[ \t]{0,2}/[ \t]{0,2}"
_MAIL_PAIR = re.compile(
    rf"@[\w-]{{1,63}}(?:\.[\w-]{{2,24}}){{1,3}}[\"'`]?(?P<sign>{_SEPARATOR}|[:;][ \t]{{0,2}}|[ \t]{{1,8}}|,[ \t]{{1,2}}|[ \t]{{0,2}}\r?\n[ \t]{{0,4}}){_VALUE}"
)
_NAMED_PAIR = re.compile(rf"(?<![\w/.@-]){_USER}[ \t]{{1,3}}[/|·→][ \t]{{1,3}}{_VALUE}")
# Words that introduce a login.
_LOGIN = re.compile(
    r"(?i)log[ -]?in|sign[ -]?in|account|\bids?\b|\buser|credential|\bacc\b|konto|zugang|anmeld|nutzer|benutzer|einlogg|identifiant|compte|connexion|connecte|utilisateur|\bcuenta|usuario"
    r"|acceso|entrar|\bconta\b|acesso|utilizador|utente|accesso|credenzial|accedi|gebruiker|inlog|aanmeld|użytkownik|zaloguj|logowan|kullanıcı|giriş|hesap|логин|логін|вход|вхід|войди|зайди|аккаунт|акаунт"
    r"|уч[её]т|пользовател|користувач|ログイン|アカウント|登录|登錄|登入|账号|帐号|帳號|用户名|로그인|계정|아이디|دخول|حساب|مستخدم|लॉगिन|खाता|uživatel|přihl|inloggning|användar|brugernavn|bruker|innlogg|käyttäjä|tunnus|σύνδεση|χρήστη|משתמש|התחבר|felhasználó|belépés|utilizator|đăng nhập|tài khoản|masuk|akun|เข้าสู่ระบบ|پسورد|ورود|password|passwort|parol|пароль|senha|hasł|wachtwoord|mot de passe|contraseñ|密码"
)
_ENTRY = re.compile(
    r"(?:^|\n)[ \t]{0,8}(?:[-*•+][ ]|\d{1,2}[.)][ ])?[*_`]{0,2}[^\W\d_][\w .()'&+/-]{1,38}[*_`]{0,2}[ ]?[:：–—-][ \t]{1,3}[*_`]{0,2}\Z"
)
_ENDS = re.compile(r"[\"'`»”)\].,;!]{0,3}(?:\s|$|[(（，。、])")


def in_logins(piece: Text) -> Iterator[Span]:
    """Find the second half of a login: after an email address, or after a name if nearby words introduce a login."""
    text = piece.text
    for at in positions_of(text, "@")[:_MAX_PAIRS]:
        match = _MAIL_PAIR.match(text, at)
        if match is None or not (user := _MAIL_USER.search(text, max(0, at - 100), at)) or "://" in user[0]:
            continue
        value = _trimmed(match["value"])
        sign = match["sign"].strip(" \t")
        around = text[max(0, at - 120) : at]
        bracketed = _OPENED.search(text, max(0, at - 70), at) is not None and text[match.start("value") + len(value) :][:1] == ")"
        if (
            sign in ("", ",", ";", "\n", "\r\n")
            and not bracketed
            and not (_LOGIN.search(around) and is_chosen(value) and _SIGNED.search(value))
        ):
            continue
        if sign == ":" and (not is_chosen(value) or "/" in value or "://" in around):
            continue
        if is_chosen(value) or (_LOGIN.search(around) and is_words(value)):
            yield Span(match.start("value"), match.start("value") + len(value), "password")
    if "/" not in text and "|" not in text and "→" not in text:
        return
    for sign in (" / ", " | ", " → "):
        for at in positions_of(text, sign)[:_MAX_PAIRS]:
            begin = max(text.rfind("\n", max(0, at - 100), at) + 1, at - 100, 0)
            user = _USER_END.search(text, begin, at)
            if user is None:
                continue
            match = _NAMED_PAIR.match(text, user.start())
            if match is None or not _ENDS.match(text, match.end("value") - _cut(match["value"])):
                continue
            value = _trimmed(match["value"])
            before = text[begin : user.start()]
            if (
                is_chosen(value)
                and not _is_ratio(user[0], value)
                and (
                    _LOGIN.search(before)
                    or (_ENTRY.search(text, max(0, begin - 1), user.start()) and (len(value) >= 8 or _SIGN.search(value)))
                )
            ):
                yield Span(match.start("value"), match.start("value") + len(value), "password")


_MAIL_USER = re.compile(r"[^\s\"'`<>]*[\w+-]$")  # the word before the `@`; in a web address it is not a mail user
_USER_END = re.compile(r"(?<![\w/.@+-])[\w.@+-]{2,64}$")
_SIGN = re.compile(r"[!@#$%^&*?~+=§]")
_OPENED = re.compile(r"[(\[][\w.+-]{1,64}$")
_SIGNED = re.compile(r"[!@#$%^&*?~+=§]|\d")
_TOOL = Anchors("getby", "locator(", ".fill(", ".type(", "send_keys(", "sendkeys(", "setvalue(", "presssequentially(")
_TYPED = re.compile(
    r"(?:getBy\w{4,16}|get_by_\w{4,16}|locator|find_element\w{0,20}|findElement|querySelector|get|element|\$|fill|type|by\w{0,8})\((?P<of>[^()\n]{1,120}(?:\([^()\n]{0,60}\))?)\)?\)?"
    r"(?:\.(?:first|nth\(\d\)|clear\(\)|click\(\)))?(?:\.|,\s{0,3})(?:fill|type|pressSequentially|press_sequentially|send_keys|sendKeys|setValue|set_value|input|enterText)\([ ]{0,2}(?P<quote>[\"'`])(?P<value>[^\"'`\n]{4,128})(?P=quote)"
)
_OF_PASSWORD = re.compile(
    r"(?i)passw|passphrase|passcode|\bpwd?\b|kennwort|contrase|senha|wachtwoord|hasło|haslo|parol|пароль|mot de passe|şifre|密码|密碼|パスワード|비밀번호|\bpin\b|\botp\b|secret"
)


def in_typed_fields(piece: Text) -> Iterator[Span]:
    """Find what a script types into a password field: `getByLabel('Password').fill('…')`."""
    if _TOOL.absent(piece):
        return
    text = piece.text
    for at in positions_of(text, "("):
        for verb in (".fill(", ".type(", ".send_keys(", ".sendKeys(", ".setValue(", ".pressSequentially(", ".press_sequentially("):
            if not text.startswith(verb, at + 1 - len(verb)):
                continue
            value = _ARGUMENT.match(text, at)
            if (
                value
                and _OF_PASSWORD.search(text[max(0, text.rfind("\n", max(0, at - 160), at), at - 160) : at])
                and not is_stand_in(value["value"])
            ):
                yield Span(*value.span("value"), "password")


_ARGUMENT = re.compile(r"\([ ]{0,2}(?P<quote>[\"'`])(?P<value>[^\"'`\n]{4,128})(?P=quote)")


def _cut(value: str) -> int:
    return len(value) - len(_trimmed(value))


def _trimmed(value: str) -> str:
    ends_with_own_mark = value.endswith("!") and value[:-1].isalnum()
    value = value.rstrip(".,;:" if ends_with_own_mark else ".,;:!?")
    return value[:-1] if value.endswith(")") and "(" not in value else value


def _is_ratio(user: str, value: str) -> bool:
    """Whether both sides are of the same kind: `320x200 / 640x480`, `v1.2 / v2.0`."""
    if len(user) > 6 and user[-4:] == value[-4:]:
        return True
    return user.isdigit() or TECHNICAL.match(user) is not None or (user.isupper() and value.isupper())


_OTHER = re.compile(
    r"(?i)https?:|www\.|.*@.*\.\w{2,}$|[\w-]+(?:\.[a-z]{2,4}){1,2}$|\d+[a-z]{1,4}$|[a-z]{1,3}\d{1,4}$|\+?[\d() -]+$|#\w+$|v?\d+(?:\.\d+)+|[\w-]+/[\w/-]+$|[a-z]+\(\)|<|\{|[\w-]+=|@|--[a-z]|[a-z][\w.-]*(?:/[\w.-]+)+(?:[;#]\S*)?$"
)


def is_chosen(value: str) -> bool:
    """Whether the value has letters and a digit or a special character, like a chosen password. Addresses, units and versions are
    excluded.
    """
    if not 6 <= len(value) <= 64 or is_stand_in(value) or TECHNICAL.match(value) or _OTHER.match(value):
        return False
    letters = any(map(str.isalpha, value))
    return letters and ((mixed(value) and DIGIT.search(value) is not None) or re.search(r"[!@#$%^&*?~+=§]", value) is not None)
