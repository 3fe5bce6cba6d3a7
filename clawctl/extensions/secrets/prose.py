# ruff: noqa: E501 - expressions and lists of words stay lines
"""Finds passwords stated in ordinary prose, by their shape and by the topic of the sentence.

A token in prose is judged by three criteria. The first is how much its shape resembles a password. The second is whether the words
around it refer to access (log in, unlock, wifi, account, zip, bank, in many languages). The third is whether it is named as
something else (a host, a branch, a model). A weak shape needs a label, or a reference to access and a word that joins the two.
Every window is bounded.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from clawctl.extensions.secrets.context import PLAIN, TYPED, likeness
from clawctl.extensions.secrets.text import (
    DIGITS,
    HYPHENS,
    Span,
    Text,
    regex,
    tried_at,
)
from clawctl.extensions.secrets.values import NAMING, TECHNICAL, is_passphrase

# Where a token may be: at a number, or at the first hyphen of lower-case words joined by hyphens.
_DIGIT = regex(r"[0-9](?:(?=[A-Za-z!#$%&*@^_+-])|(?<=[A-Za-z!#$%&*@^_+-][0-9]))")
_HYPHENS = regex(r"-[a-z]{3,12}-[a-z]{3,12}-[a-z]{3}")
_TOKEN = regex(r"[A-Za-z0-9$!*][!#-&(-;=?-\[\]-_a-{}~]{5,47}")
_OF_TOKEN = frozenset(map(chr, range(33, 127))) - frozenset("\"'`<>|\\/")
_LONGEST = 48
_CLOSING = ".,;:)]}"

# Words that refer to access, by language: en de fr es pt it nl pl cs tr sv/da/no fi ro hu id sw vi ru uk, then other scripts.
_ACCESS = regex(
    r"(?<![^\W_])(?:"
    r"log(?:s|ged)? ?(?:in|on|into)\b|logins?\b|sign(?:s|ed)? ?(?:in|into)\b|unlocks?|opens? (?:with|it|the|up|only)|opens\b|(?:to )?get in\b|let(?:s)? (?:me|you|us) in\b|punch in|key in|type(?: it| that| this)? in\b|types\b|passwords?|passphrase|passcode|pass ?word|encrypted?|wi-?fi|wlan|account|nas\b|router|modem|sudo|root\b|disk|zip\b|vault|safe\b|locker|lock\b|door|gate|alarm|garage|laptop|keychain|keepass|bitwarden|1password|admin\b|hotspot|mailbox|netflix|remember (?:this|it|that)|all one word|one word|new one|vpn\b|ssh\b|bank|card\b|credentials?|second (?:field|line)|sticker|phone\b|decrypt|portal|the usual\b|e-?mail\b|vault"
    r"|handy\b|geht\b[^.\n]{0,40}\bauf\b|entschlüssel|déchiffr|descifr|decifr|odszyfr|расшифр|téléphone|teléfono|móvil|celular|telefon|telefoon|neno la siri|barua pepe|simu\b|anmeld|einlogg|logg(?:e|t|en)?\b|entsperr|aufsperr|öffne|geht auf|kennwort|passwort|konto|rechner|festplatte|tresor|schließfach|freischalt|zugang|postfach"
    r"|connecte[rz]?\b|connexion|identifi|déverrouill|ouvr(?:e|ir)|entrer|mot de passe|mdp\b|compte\b|boîte mail|coffre|box\b|portail"
    r"|entra(?:r)?\b|inicia(?:r)? sesión|accede|acceso|contraseña|clave\b|cuenta|desbloque|abre\b|abrir|portón|panel\b|correo"
    r"|senha|palavra-passe|conta\b|portão|cofre|acess[ae]r?\b|acesso|accedi|sblocca|apri\b|apre\b|cassaforte|cancello|posta\b"
    r"|inlogg|log in|ontgrendel|wachtwoord|rekening|kluis|openen?\b|zaloguj|logowani|hasło|konta\b|odblokuj|sejf|przihlas|přihlas|heslo|účt|odemkn|giriş|şifre|parola|hesab|kilit|logga in|lösenord|kontot?\b|lås|adgangskode|passord|kirjaudu|salasana|tili|avaa\b|autentific|parolă|contul|descuie|jelszó|bejelentkez|fiók|belép"
    r"|masuk\b|kata sandi|sandi\b|akun\b|buka\b|ingia\b|nenosiri|nywila|akaunti|fungua|mật khẩu|mat khau|đăng nhập|tài khoản|mở khóa|zaloguj|войди|войти|вход\b|зайди|логин|пароль|пароля|паролем|парол|аккаунт|учётк|учетк|почт|сейф|замок|увійди|пароль|обліков)"
    r"|密码|密碼|登录|登錄|登入|账号|帐号|帳號|解锁|解鎖|路由器|パスワード|ログイン|アカウント|ロック|비밀번호|로그인|계정|비번|와이파이|รหัสผ่าน|รหัส|เข้าสู่ระบบ|ล็อกอิน|บัญชี|ไวไฟ|كلمة المرور|كلمة السر|تسجيل الدخول|حساب|رمز|סיסמה|סיסמא|התחבר|חשבון|पासवर्ड|लॉग ?इन|खाता|खाते|κωδικ|σύνδεσ|λογαριασμ|رمز عبور|گذرواژه|ورود"
)
# Words that name a password directly.
_LABEL = regex(
    r"(?<![^\W_])(?:passwords?|passphrase|passcode|pass ?word|encryption phrase|secret phrase|pass\b|pw\b|pwd\b|mdp\b|mot de passe|passwort|kennwort|contraseña|clave\b|senha|palavra-passe|wachtwoord|hasło|heslo|şifre\w*|parola\w*|lösenord\w*|adgangskode|kodeord|passord\w*|salasana|parolă|jelszó|kata sandi|sandi\b|nenosiri|neno la siri|nywila|mật khẩu|mat khau|парол\w{1,2}|lozinka|slaptažodis)|密码|密碼|口令|パスワード|비밀번호|비번|암호|รหัสผ่าน|كلمة المرور|كلمة السر|סיסמה|סיסמא|पासवर्ड|κωδικ|رمز عبور|گذرواژه"
)
# Words that join a value to the words before it, or ask the reader to type it.
_JOIN = regex(
    r"(?:[:：=→–—]|->)[ \t\"'`“«„*]{0,4}$|(?:^|[\s,.'’(])(?:is|was|it's|its|the usual|with|using|use|used|enter|type|types|put|say|try|now|then|slash|ist|lautet|mit|nimm|gib|tippe?|jetzt|est|c'est|c’est|avec|mets|tape[rz]?|entre[rz]?|es|con|pon|usa|escribe|com|põe|coloca|é|è|inserisci|metti|met|gebruik|vul|to|wpisz|podaj|je|zadej|yaz|gir|är|er|med|skriv|on|kirjoita|este|cu|scrie|írd|adalah|ialah|pakai|ketik|ni|ingiza|tumia|là|nhập|введи|вводи|это|теперь|набери|вбивай|введіть|це|που|είναι|هي|هو|היא|הוא|है)[\s:,]{1,3}[\"'`“«„*]{0,3}$|(?:是|为|為|用|は|で|คือ|ใช้|输入|輸入|는|은|로)[\s:：]{0,2}[\"'「“]?$"
)
# A value with such a name is not a password.
_OTHER = regex(
    r"(?<![^\W_])(?:hosts?|hostname|server|machine|box called|called|named|heißt|user(?:name)?|usuario|utilisateur|benutzer(?:name)?|login name|handle|gamertag|profile|nick(?:name)?|branch|ticket|issue|model|modell|modelo|modèle|serial|seriennummer|order|bestellung|commande|pedido|bucket|container|pod|image|tag|release|version|build|file|datei|fichier|archivo|folder|ssid|network|netzwerk|channel|domain|id|ref|reference|invoice|rechnung|facture|factura|project|projekt|repo|booking|tracking|package|paket|flight|room|part|sku|product|job|task|node|cluster|region|instance|class|function|variable|method|module|plugin|font|code name|codename|size|key id|commit|test|route|variant|theme|пользователь|хост|ветка|модель|файл|заказ)s?(?:[ ]?[:#=]|[ ](?:is|are|was|ist|est|es|è|é|to|это)\b)?(?:[\s\"'`(]{1,3}[^\s]{1,14}){0,1}[\s\"'`(:#]{0,3}$"
)
_CODE_SIGN = regex(r"[{}()\[\];=<>\\|$`]|::|//|\w\.\w+\(")
_WORD = regex(r"(?<![^\s(\"'“«„¿¡])[^\W\d_]{1,20}(?=[\s,.;:!?)\"'”»…]|$)")
_SPACELESS = regex("[\u3040-\u30ff\u3400-\u9fff\u0e01-\u0e4e\uac00-\ud7af]{3}")
# `lantern-ginger-674`, `Dragon_Mikan_43`. Lower-case words joined by underscores are an identifier.
_JOINED = regex(r"[A-Za-z]{3,12}(?:-[A-Za-z]{3,12}){1,3}-?\d{2,4}|[A-Z][a-z]{2,11}(?:_[A-Z][a-z]{2,11}){1,3}_?\d{2,4}")
_NUMBERED = regex(r"[A-Z][a-z]{2,14}(?!(?:19|20)\d\d(?!\d))\d{4,6}[A-Z]{0,3}")
_CHOSEN = regex(
    r"(?=[^A-Za-z]*(?:[A-Za-z][^A-Za-z]*){3})(?=\D*\d\D*\d)(?=[^@#$^&*+!?%=]*[@#$^&*+!?])(?=.{0,2}[A-Za-z])(?:[A-Z0-9][A-Za-z0-9@$!]{2,}|[a-z][A-Za-z0-9@$!]*[A-Z@$!][A-Za-z0-9@$!]*)[A-Za-z0-9@#$^&*+!?%_.-]{1,24}"
)
_NOT_CHOSEN = regex(
    r"(?i)[\w.+-]+@[\w-]+\.\w|\w+://|&\w+;|%[0-9a-f]{2}|[\d.,]+[%+*$]?\w{0,3}$|(?:us|au|ca|nz|hk|r|c|a)\$|[\w.-]+[?&]\w+=|\w{1,3}[*+&]\w{1,3}$|[a-z]{1,5}\d{1,5}[!?.+*]+$|\w+\+\d{1,2}$|\d+[a-z]{1,4}[+*!?]|[\w.]+@[v^~]?\d|[\w-]+\.[a-z]{2,4}[#?]|fritz!|[a-z_.-]{2,}=|[\w-]+@[v^~<>=*]{0,2}\d|[a-z]{2,}\d*\+[a-z]|(?-i:(?:[A-Z][a-z]?\d{1,2}){2})|[a-z]{1,8}\d{1,2}\.\d|[a-z]{2}\d\d[a-z0-9]{10,30}$|[a-z]{4,}\d{1,3}[!?.+*]+$|[a-z]{4,}(?:19|20)\d\d[!?.+*]+$|\w+#(?:l|issue|section|[a-z]+[-_][a-z])|(?-i:[a-z/-]+#\d+$)"
)
_WORD_AND_NUMBER = regex(r"[A-Z]?[a-z]+[-_]?\d{1,4}")  # `Acrobat2020`
_LIKE_A_NAME = regex(r"[A-Za-z]+\d+[!?+*]+|[A-Z]?[a-z]+#\d+[A-Z]?|[A-Z][a-z]+\d+[A-Z][a-z]*[!?.+]*")  # `Marble2158!`, `Suite#400B`
# After these words, a value in prose is just as often a name or a number.
_SOFT = regex(
    r"(?:accounts?|akaunti|akun|konto|konta|kontot|compte|cuenta|conta|rekening|tili|bank|card|correo|posta|почт|аккаунт|box|portail|panel|portal|admin|root|door|types|credentials?|phone|handy|e-?mail|téléphone|teléfono|móvil|celular|telefon|telefoon|simu|barua pepe)\Z"
)
_ADDRESS = regex(r"[\w.+-]{1,40}@[\w-]{1,40}\.[\w.-]{2,30}[ ,]{1,2}(?:slash|and|und|et|y|e|en|i|и|with|then|/)[ ]")
STRONG, WEAK = 2, 1
_BLOCK = 128


@tried_at(DIGITS, HYPHENS, to_value_end=False)
def in_prose(piece: Text) -> Iterator[Span]:
    """Find passwords such as `entra con usuario gerente y pon Guitarra6684#`, `that zip opens with Akte50400EX`, `the disk one,
    which is lantern-ginger-674`.
    """
    access: dict[int, bool] = {}
    text = piece.text
    for match in _tokens(text):
        value = match[0].rstrip(_CLOSING)
        if not (shape := _shape(value)):
            continue
        start, end = match.start(), match.start() + len(value)
        if len(match[0]) >= 48 or text[end : end + 1] in ("(", "=", "/", "\\") or text[end : end + 2] in (".c", "::"):
            continue
        if not _is_disclosed(piece, start, end, shape):  # first, because the words of access are many
            continue
        block = start // _BLOCK
        if block not in access:
            window = piece.lower[max(0, (block - 1) * _BLOCK) : (block + 2) * _BLOCK]
            access[block] = _ACCESS.search(window) is not None
        if access[block]:
            yield Span(start, end, "password")


def _tokens(text: str) -> Iterator[re.Match[str]]:
    """Yield the tokens that contain a number next to a letter or sign, and tokens of four or more words joined by hyphens."""
    reached = 0
    while digit := _DIGIT.search(text, reached):
        token = _token_at(text, digit.start(), reached)
        reached = token.end() if token else digit.end()
        if token:
            yield token
    if text.count("-") >= 3:
        for hyphen in _HYPHENS.finditer(text):
            if token := _token_at(text, hyphen.start(), max(0, hyphen.start() - _LONGEST)):
                yield token


def _token_at(text: str, at: int, reached: int) -> re.Match[str] | None:
    begin, first = at, max(reached, at - _LONGEST)
    while begin > first and text[begin - 1] in _OF_TOKEN:
        begin -= 1
    while text[begin : begin + 1] in ("(", "[", "{", ":", ","):
        begin += 1
    if begin == first > 0 or text[begin - 1 : begin] in ("/", "\\", "<", "|"):
        return None
    return _TOKEN.match(text, begin)


@lru_cache(maxsize=1 << 13)
def _shape(value: str) -> int:
    """Return how much a token looks like a chosen password: `STRONG`, `WEAK` or 0."""
    if not 6 <= len(value) <= 40 or TECHNICAL.match(value):
        return 0
    if joined := _JOINED.fullmatch(value):
        return WEAK * (not any(word.lower() in NAMING for word in re.split(r"[-_\d]+", joined[0])))
    if value.count("-") >= 3:
        return WEAK * is_passphrase(value)
    if _NUMBERED.fullmatch(value):
        return WEAK
    if _NOT_CHOSEN.match(value) or _WORD_AND_NUMBER.fullmatch(value):
        return 0
    if _LIKE_A_NAME.fullmatch(value):
        return WEAK
    if _CHOSEN.fullmatch(value):
        return STRONG
    grade = likeness(value)
    return STRONG if grade == TYPED else WEAK if grade == PLAIN and len(value) >= 8 else 0


def _is_disclosed(piece: Text, start: int, end: int, shape: int) -> bool:
    text, lower = piece.text, piece.lower
    line = max(text.rfind("\n", max(0, start - 120), start) + 1, start - 120)
    after = text.find("\n", end, end + 80)
    last = min(len(text), end + 80) if after < 0 else after
    before, behind = text[line:start], text[end:last]
    if len(_CODE_SIGN.findall(before)) + len(_CODE_SIGN.findall(behind)) > 2 or before.count('"') + behind.count('"') > 4:
        return False
    words = len(_WORD.findall(before)) + len(_WORD.findall(behind))
    if words < 3 and not (_SPACELESS.search(before) or _SPACELESS.search(behind)):
        return False
    lead = lower[max(line, start - 90) : start]
    if _OTHER.search(lead):
        return False
    clause = lead[max(lead.rfind(". "), lead.rfind("? "), lead.rfind("! ")) + 1 :]
    if shape == STRONG:
        near = lower[max(line, start - 100) : min(last, end + 60)]
        return _ACCESS.search(near) is not None and (
            _JOIN.search(lead[-24:]) is not None or _LABEL.search(near) is not None or words >= 5
        )
    if _LABEL.search(clause[-56:]) and not _CODE_SIGN.search(clause[-56:]):
        return True
    if _ADDRESS.search(clause):
        return True
    firm = any(_SOFT.match(said[0]) is None for said in _ACCESS.finditer(clause))
    return _JOIN.search(lead[-24:]) is not None and (firm or _LABEL.search(lead) is not None)
