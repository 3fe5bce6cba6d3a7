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
    BEYOND,
    DIGITS,
    HYPHENS,
    AnchorGroups,
    Anchors,
    Span,
    Text,
    positions_of,
    regex,
    tried_at,
)
from clawctl.extensions.secrets.values import NAMING, TECHNICAL, is_passphrase, is_stand_in

# Where a token may be: at a digit next to a letter or a sign, or at the first hyphen of lower-case words joined by hyphens.
_CLASSES = bytes(
    48 if 48 <= code < 58 else 97 if chr(code).isalpha() or chr(code) in "!#$%&*@^_+-" else 32 for code in range(128)
) + bytes(128)
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
_MAX_TRIES = 3  # per form and block


@tried_at(DIGITS, HYPHENS, to_value_end=False)
def in_prose(piece: Text) -> Iterator[Span]:
    """Find passwords such as `entra con usuario gerente y pon Guitarra6684#`, `that zip opens with Akte50400EX`, `the disk one,
    which is lantern-ginger-674`.
    """
    access: dict[int, bool] = {}
    text = piece.text
    for match in _tokens(piece):
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


def _tokens(piece: Text) -> Iterator[re.Match[str]]:
    """Yield the tokens that contain a number next to a letter or sign, and tokens of four or more words joined by hyphens."""
    text, reached = piece.text, 0
    for at in _mixed_digits(piece.ascii):
        if at >= reached:
            token = _token_at(text, at, reached)
            reached = token.end() if token else at + 1
            if token:
                yield token
    if text.count("-") >= 3:
        for hyphen in _HYPHENS.finditer(text):
            if token := _token_at(text, hyphen.start(), max(0, hyphen.start() - _LONGEST)):
                yield token


def _mixed_digits(text: str) -> list[int]:
    """Return the positions of the digits next to a letter or a sign, in order."""
    classes = text.encode().translate(_CLASSES)
    return sorted({*positions_of(classes, b"0a"), *(at + 1 for at in positions_of(classes, b"a0"))})


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


# Distinctive forms. Each entry has its anchor words in lower case and the pattern tried at each anchor.
_FORMS: tuple[tuple[Anchors, re.Pattern[str]], ...] = tuple(
    (Anchors(*(word for word in words.split(",") if word.isascii())), regex(pattern))
    for words, pattern in (
        # char pw[] = {'X', 'a', …};
        ("pin[,pw[,pass[,passwd[,password[,secret[,key[,token[,pwd[,passphrase[,psk[,salt[", r"\w{2,10}\[\w{0,12}\]\s{0,4}=\s{0,4}[{\[]\s{0,8}(?P<value>'(?:\\?[!-~])'(?:\s{0,4},\s{0,8}'(?:\\?[!-~])'){4,80})"),
        # Magnetic stripe
        ("track,swipe,magstripe,reader,stripe", r"[^\n]{0,60}?(?P<value>(?:%B\d{12,19}\^[^\n?]{2,60}\?)?;?\d{13,19}=\d{7,30}\??)"),
        # Key dump
        ("hexdump,xxd,hex dump,dump of", r"(?i)(?=[^\n]{0,60}(?:key|secret|passphrase|token|seed|keyfile))[^\n]{0,80}\n(?P<value>(?:[0-9a-f]{6,8}:?[ ]{1,2}(?:[0-9a-f]{2,4}[ ]{1,2}){4,16}[^\n]{0,20}(?:\n|$)){1,16})"),
        # `echo 5469… | xxd -r -p | sudo -S`
        ("echo ,printf ", r"(?:echo|printf) (?:-n )?[\"']?(?P<value>(?:[0-9a-fA-F]{2}){5,64}|[A-Za-z0-9+/]{8,128}={0,2})[\"']? ?\| ?(?:xxd -r -p|base64 (?:-d|-D|--decode)) ?\| ?(?:sudo (?:-\w )*-S|su\b|sshpass|openssl|gpg|cryptsetup)"),
        # Static password of a security key, in its own alphabet
        ("static,yubi,ykman", r"(?i)[^\n]{0,60}?[ :=\"'](?P<value>[cbdefghijklnrtuv]{16,64})(?![A-Za-z0-9])"),
        ("rwrty0iy", r"(?P<value>RWRTY0Iy[A-Za-z0-9+/]{40,260}={0,2})"),
        # Setup keys of authenticators and app passwords, in groups of four letters
        ("setup key,set-up key,secret key,manually,authenticator,2fa,totp,two-factor,hand ein,manuellement,manualmente,handmatig,einrichtungssch", r"(?i)[^\n\d]{0,60}?[ :\"'](?P<value>[a-z2-7]{4}(?:[ -][a-z2-7]{4}){3,15})(?![a-z0-9])"),
        ("app password,app-password,app-specific,app specific,app-passwort,app passwort,application password,app-kennwort,mot de passe d'app,contrase?a de apli,senha de app,password per le app,wachtwoord voor app,app-wachtwoord,has?o aplikacji", r"(?i)[^\n\d]{0,60}?[ :\"'](?P<value>[a-z]{4}(?:[ -][a-z]{4}){3})(?![a-z0-9]|[ -][a-z])"),
        # Line of a diff or a file with a signing or encryption key
        ("signing=,signing:,signing =,hmac=,pepper=,_jwt=,jwt_sign,encryption=", r"[A-Z_]{1,24}[ ]?[=:][ ]?[\"']?(?P<value>(?=[^\s\"']{0,64}\d)[A-Za-z0-9+/_.~!@#%^&*-]{12,128}={0,2})"),
        # What a password manager put into the clipboard
        ("clipboard,zwischenablage,presse-papiers,portapapeles,klembord", r"(?i)(?=[^\n]{0,120}(?:keepass|bitwarden|1password|lastpass|dashlane|enpass|pass(?:word)?\b|proton ?pass|gopass))[^\n]{0,120}?[ :=\"'](?P<value>(?=[^\s\"']{0,40}\d)(?=[^\s\"']{0,40}[A-Za-z])(?!\d[\d:.,/-]{1,20}[TZ]?)(?![A-Za-z]*\d?[A-Za-z]*[\s\"':=])[!-~]{8,64}?)(?=[\"'\s]|$)"),
        # Session cookie with a known name
        ("li_at,sessdata,bduss,.roblosecurity,sp_dc,auth_token,jsessionid,phpsessid", r"(?i)\.?\w{4,14}(?:[ ]?(?:cookie|value|is|value is|cookie is))?[ \t:=\"']{1,4}(?P<value>(?=[^\s\"']{0,60}\d)[A-Za-z0-9_%.|~-]{16,400})(?![\w(])"),
        # Digits on the back of a card
        ("on the back,on the reverse,security digits,auf der r?ckseite,hinten drauf,au dos,al dorso,en el reverso,no verso,sul retro,op de achterkant", r"(?i)[^\n\d]{0,24}?(?:is|are|say|says|read|reads|sind|ist|lautet|est|sont|es|son|s\u00e3o|sono|zijn|:)[ :]{1,2}(?P<value>\d{3,4})(?![\d\w%.:/-]\w|[ ](?:pages|lines|words|seats))"),
        # Code received by message that the reader is asked to type
        ("texted,text message,text just,sms,got a text", r"(?i)(?=[^\n]{0,120}(?:type|enter|put|punch|use it|quick|hurry|expire|before|gib|tipp|eingeb|schnell|entre|tape|vite|mets|pon|mete|rápido|escribe|digita|inserisci|presto|vul|snel|wpisz|szybko|gir\b|yaz\b|zadej|введи|вводи|быстр|набери|введіть))[^\n\d]{0,60}?[ :\"'#](?P<value>\d{3}[ -]\d{3}|\d{4,8})(?![\d\w%/:-]|[.,]\d)"),
        # Number on a sticker as the key of a network
        ("wifi,wi-fi,wlan", r"(?i)[^\n\d]{0,80}?(?:sticker|label|aufkleber|\u00e9tiquette|etiqueta|etichetta|naklej\w+)[^\n\d]{0,24}?[ :](?P<value>\d{8,24})(?![\d\w])"),
        ("four digits,six digits,4 digits,6 digits,vier ziffern,quatre chiffres,cuatro d", r"(?i)[^\n\d]{0,24}(?<=[, :])(?P<value>\d{4,8})(?=[.,;!)\s]|$)"),
    )
)  # fmt: skip
_CHOICE = AnchorGroups([anchors for anchors, _ in _FORMS])
_BEYOND_FORMS = tuple((word, pattern) for word in ("смс",) for anchors, pattern in _FORMS if "sms" in anchors.anchors)
_PIN_BEFORE = regex(r"(?i)\b(?:pin|code|passcode|geheimzahl|code secret|clave)\b")
_PLAIN_GROUPS = frozenset(
    """
that this with your from have will then they when what here into only also each more than used user name text type file data same like code word need make take open safe lock door home work page show ones some them
""".split()  # noqa: SIM905
)


@tried_at(_CHOICE, BEYOND)
def in_dumps(piece: Text) -> Iterator[Span]:
    """Find keys in printed or copied forms: char arrays, dumps, card tracks, groups of four letters, codes sent by message."""
    text = piece.text
    positions = [(_FORMS[number][1], at) for number, places_ in _CHOICE.positions(piece) for at in places_]
    if piece.beyond:
        positions += [(pattern, at) for word, pattern in _BEYOND_FORMS for at in positions_of(piece.lower, word)]
    tried = dict[tuple[int, int], int]()
    for pattern, at in positions:
        block = (id(pattern), at // _BLOCK)
        tried[block] = tried.get(block, 0) + 1
        if tried[block] > _MAX_TRIES:
            continue
        match = pattern.match(text, at)
        if match is None or not _may_be(match["value"], text, at):
            continue
        yield Span(match.start("value"), match.start("value") + len(match["value"].rstrip()), "password")


def _may_be(value: str, text: str, at: int) -> bool:
    if re.fullmatch(r"[A-Za-z2-7]{4}(?:[ -][A-Za-z2-7]{4})+", value):
        groups = re.split("[ -]", value.lower())
        return _PLAIN_GROUPS.isdisjoint(groups) and value in (value.lower(), value.upper())
    if value.isdigit() and len(value) <= 8 and re.match(r"(?i)\w+ (?:digits|ziffern|chiffres|d[ií]gitos)", text[at : at + 24]):
        return _PIN_BEFORE.search(text[max(0, at - 48) : at]) is not None
    if value.isdigit() and len(value) == 4 and re.fullmatch("(?:19|20)\\d\\d", value):
        return False
    return len(set(value)) > 2 and not is_stand_in(value)
