# ruff: noqa: E501 - expressions stay lines
"""Codes of digits, and lists of recovery codes: what only the words beside them tell from other numbers."""

import re
from collections.abc import Iterator

from clawctl.privacy.rules.pieces import Anchors, Span, Text, places
from clawctl.privacy.rules.values import DIGIT, is_stronger_password, mixed

# What a code opens or proves. `code` alone says nothing: exit codes and postal codes are codes too.
_OPENS = (
    r"alarm\w{0,4}|doors?|gate|entry|entrance|access|safe|vault|lockers?|lock|padlock|keypad|garage|building|house|home|flat|apartment|office|lift|elevator|key[ -]?(?:box|safe)|lock[ -]?box|shed|barrier|car[ -]?park|parking|bike|luggage|suitcase"
    r"|unlock|disarm|phone|mobile|tablet|ipad|screen|sim|voicemail|device|parental|guests?|wi-?fi|wlan|bluetooth|pairing|duress|master|panel|intercom|turnstile|cabinet|drawer|server[ ]room"
    r"|porte|portail|immeuble|coffre|alarme|interphone|digicode|cadenas|garaje|puerta|portón|portal|caja fuerte|alarma|candado|portão|cofre|cadeado|cancello|portone|cassaforte|allarme|lucchetto|citofono"
    r"|tür|haustür|tresor|schloss|schließfach|garage|alarmanlage|tor|eingang|deur|kluis|poort|slot|drzwi|bramy|alarmu|sejfu|domofonu|furtki|dörren|porten|larmet|ovi|двери|домофона|сейфа|ворот|подъезда|сигнализации"
)
_PROVES = (
    r"security|login|log-?in|sign-?in|verification|confirmation|authentication|authori[sz]ation|activation|one-?time|otp|sms|2fa|mfa|two-factor|2-step|totp|transfer|pin|passkey|admin|override|backup|recovery|reset|gift[ -]?card|swish"
    r"|zugangs|sicherheits|entsperr|bestätigungs|freischalt|aktivierungs|prüf|tür|haustür|alarm|tor|tresor|deur|toegangs|kluis|port|dörr|lås"
)
_ARTICLE = r"(?:[ ](?:the|our|my|your|his|her|their|this|that|new|old|front|back|side|main|office|garden|la|le|les|l['’]|du|de|des|della|dell['’]|del|el|do|da|dos|das|die|der|das|dem|den|het|mon|ma|mi|meine?[rm]?|unsere?[rm]?|od|от|till)){0,3}[ ]?"
# The words that name a code, and what must stand before them.
_WORD = re.compile(
    r"(?i)(?:(?P<pin>(?-i:PIN\d?)(?:[- ]?(?:code|number|nummer|kod))?|pin[- ]?(?:code|number|nummer))|(?P<owned>pin)|(?P<puk>puk\d?(?:[- ]?code)?)"
    r"|(?P<card>cv[vc]2?|cvn|csc|security code|card verification (?:code|value|number)|prüfziffer|kartenprüfnummer|cryptogramme)|(?P<tan>(?-i:TAN)|otp|passcode)"
    r"|(?P<code>codes?|código|codice|kod|код|kode|koodi)|(?P<combination>combination|combo|kombination|combinaison|combinación|combinação|combinazione|combinatie|szyfr))(?![a-z])"
)
_OWNED = re.compile(
    r"(?i)(?:sim|card|bank|phone|debit|credit|atm|door|gate|safe|alarm|unlock|voicemail|my|your|screen|ipad|mio|tuo|suo|mi|tu|su|mon|ton|son|meu|seu|mein|dein|ihr|unser|min|din|mijn|jouw|mój|twój|můj)[ -]$"
)
_QUALIFIED = re.compile(rf"(?i)(?<![a-z])(?:{_OPENS}|{_PROVES})(?:['’]s)?[ -]?(?:\w{{1,10}} )?$")
_QUALIFIED_BY = re.compile(
    rf"(?:(?: (?:to|for|of|on|at|de|del|della|do|da|du|des|di|zur|zum|für|von|voor|van|od|от|till|til|para|pour|der|pin)| d['’]| del['’])?{_ARTICLE}(?:{_OPENS})| (?-i:PIN))(?!\w)",
    re.IGNORECASE,
)
_BOUND = frozenset(("pin", "puk", "cvv", "cvc", "cvn", "csc", "tan", "otp", "kod"))  # are parts of many words
_ANCHORS = Anchors("pin", "puk", "cvv", "cvc", "cvn", "csc", "security code", "card verification", "kartenpr", "cryptogramme", "tan", "otp", "passcode", "code", "kod", "codice", "c?digo", "combination", "combinatie", "combina", "combo", "kombination", "szyfr")  # fmt: skip
_UNIT = r"(?![ ]?(?:-?digit|ziffer|stellig|chiffre|d[ií]gito|cifre|character|char|zeichen|minute|min\b|second|sec\b|hour|day|week|year|times|attempt|tries|user|people|percent|bytes?\b|[kmg]b\b|mv\b|v\b|hz\b|ms\b|px\b|items|lines|words|combinations|possib|options|steps|of\b)|[ ]?[munpkgµ]?(?:[afhvwω]|hz|pa|m|g|s|db|dbm|rpm|wh|ah)\b|%|[ ]?[€$£°])"
_DIGITS = rf"\d{{3,10}}(?![\w%]|[.,:/-]\d){_UNIT}"
_VALUE = re.compile(
    rf"""(?i)(?P<gap>(?:[^\d\n]|\d{{1,2}}(?=[ ][a-z])){{0,64}}?(?::[ *_`]{{0,4}}\n{{1,2}}[ >*`-]{{0,6}})?)(?<![\w.,/-])(?P<value>(?:[lr][ ]?)?\d{{1,2}}(?:[ ]?[-–,/ ][ ]?(?:[lr][ ]?)?\d{{1,2}}){{2,4}}(?![\d:/-])|\d{{3,4}}[ -]\d{{3,4}}(?:[ -]\d{{3,4}})?(?![\w%]|[.,:/-]\d){_UNIT}|{_DIGITS})"""
)
_NO_VALUE = re.compile(
    r"(?i)(?:\b(?:in|since|until|by|room|page|line|section|step|version|port|after|within|than|least|most|up|over|under|every|per|issue|ticket|bug|error|errors|status|chapter|year|failed|between|about|only|max|min|minimum|maximum|requires?|has|have|had|takes?|rfc|iso|article|ext|extension|call|phone|order|invoice|nr|no|gpio|bus|address|seit|nach|ab|bis|im|aus|mit|mindestens|après|depuis|en|desde|dopo|entro)|#|[.!][ ]+[A-Z][^\d]*)[ :.\"'(]{0,3}$"
)
_OTHER_CODE = re.compile(
    r"(?i)\b(?:error|status|exit|return|response|http|zip|postal|post|area|country|promo|coupon|discount|colou?r|source|product|item|dial|bar|qr|currency|language|reason|result|event|char|key|scan|airport|station|tax|sort|swift|stock|sku|hs|icd)[ -]$"
)
_FIELD = re.compile(
    r"""(?i)(?<![a-z])(?:(?:card|sim|user|my|new|old)?[_-]?(?:cvv2?|cvc2?|cvn|csc|puk\d?|pin(?:_?code)?(?=["'])|otp(?:_?(?:code|value))?|tan|passcode)|(?:pin|door|gate|alarm|safe|unlock|security|verification|access|mfa|2fa|sms|auth|login|backup|recovery|one[_-]?time)[_-]?code|(?:phone|device|screen|card|sim|bank|debit|unlock|lock|alarm|door|voicemail)[_-]?pin(?:_?code)?)(?P<quote>\\{0,3}["'])?[ ]?(?:[:=]|=>)[ ]?\\{0,3}["']?(?P<value>\d{3,10})(?![\w.%-])"""
)


_NETWORK = Anchors("wi-fi", "wifi", "wlan", "wpa")
_NETWORK_KEY = re.compile(
    r"(?i)(?:wi-?fi|wlan|wpa\d?)(?:[ -]?(?:network|netzwerk))?[ -]?(?:key|schlüssel|netzwerkschlüssel|pass\w{0,6}|pw|pwd|code|kennwort|psk|clé|clave|chiave|sleutel)[ ]?(?:\(\w{1,12}\))?[ ]{0,2}(?:is|ist|est|es|è|:|=|→)?[ ]{0,2}[\"'`]?(?P<value>\d{8,24}|\d{4}(?:[ -]\d{4}){1,5})(?![\w.])"
)


def in_network_keys(piece: Text) -> Iterator[Span]:
    """The keys that routers come with are digits."""
    for at in () if _NETWORK.absent(piece) else _NETWORK.places(piece):
        if match := _NETWORK_KEY.match(piece.text, at):
            yield Span(*match.span("value"), "password")


def in_codes_of_digits(piece: Text) -> Iterator[Span]:
    """`the code for the alarm is 4471`, `PIN 5520, PUK 12345678`, `safe combination is 32-17-45`, `"cvc": "927"`."""
    if (_ANCHORS.absent(piece) and piece.text.isascii()) or not DIGIT.search(piece.text):
        return
    text, lower, done = piece.text, piece.ascii, -1
    found = set(_ANCHORS.places(piece))
    if not text.isascii() and _OTHER_SCRIPT.search(text):
        found.update(at for name in ("код", "kód") for at in places(piece.lower, name))
    for at in sorted(found):
        if at < done or _is_within_word(lower, at):
            continue
        word = _WORD.match(text, at)
        named = word is not None and _is_named(text, word)
        if word and named and (value := _VALUE.match(text, word.end())) and _is_code(text, word, value):
            done = value.end()
            yield Span(*value.span("value"), "password")
            while more := _AND_ANOTHER.match(text, done):
                done = more.end()
                yield Span(*more.span("value"), "password")
        elif (
            word
            and named
            and (typed := _TYPED.match(text, word.end()))
            and (is_stronger_password(typed["value"]) or _GROUPED.fullmatch(typed["value"]))
        ):
            done = typed.end()
            yield Span(*typed.span("value"), "password")
        elif field := _FIELD.search(text, max(0, at - 14), at + 40):
            yield Span(*field.span("value"), "password")


_AND_ANOTHER = re.compile(rf"(?i)[,;](?: and| und)? (?:the )?(?:{_OPENS})(?: code| pin)?:? (?P<value>\d{{4,8}}[#*]?)(?![\w.:/-])")


def _is_within_word(lower: str, at: int) -> bool:
    """`pin` in `mapping`; not the second part of `pushTAN` or the first of `pincode`."""
    return lower[at : at + 3] in _BOUND and (
        (lower[at - 1 : at].isalpha() and not lower.startswith("tan", at))
        or (lower[at + 3 : at + 4].isalpha() and not lower.startswith(("pincode", "pinnummer", "kode", "kodu"), at))
    )


def _is_named(text: str, word: re.Match[str]) -> bool:
    """Whether a word that may mean many things names something that a code opens or proves."""
    before = text[max(0, word.start() - 24) : word.start()]
    if word["owned"]:
        return _OWNED.search(before) is not None or _QUALIFIED_BY.match(text, word.end()) is not None
    if word["code"]:
        return not _OTHER_CODE.search(before) and (
            _QUALIFIED.search(before) is not None or _QUALIFIED_BY.match(text, word.end()) is not None
        )
    return True


def _is_code(text: str, name: re.Match[str], value: re.Match[str]) -> bool:
    gap, digits = value["gap"], re.sub(r"\D", "", value["value"])
    if _NO_VALUE.search(gap) or _NO_COPULA.search(gap) or len(digits) < (3 if name["card"] or name["combination"] else 4):
        return False
    if not _SAYS.search(gap) and not _OF.fullmatch(gap):
        return False
    if name["combination"]:
        opens = _LOCKED.search(text[max(0, name.start() - 40) : name.end() + 60]) is not None
        return (_SAYS.search(gap) is not None or (opens and gap == " ")) and (opens or len(digits) != len(value["value"]))
    return name["card"] is None or len(digits) <= 4


_TYPED = re.compile(
    r"(?i)[^\d\n:;.]{0,40}?(?:[ ](?:is|was|ist|lautet|est|es|è|é)|[ ]?[:=])[ ]{1,2}[\"'`*]{0,2}(?P<value>[^\s\"'`]{6,64})"
)
_GROUPED = re.compile(r"(?=[A-Z-]{0,8}\d)[A-Z0-9]{3,4}-[A-Z0-9]{3,4}[.,]?")
_NO_COPULA = re.compile(
    r"(?i)\b(?:has|have|had|expires?d?|must|should|needs?|changed (?:on|in|at|by)|sent|requires?|valid|contains?|consists?|diode|header|array|mode|strip|memory|assignment)\b|[{};]|\|\|"
)
_SAYS = re.compile(
    r"""(?i)(?:[:=→>*"'`(\[|,]|->|[-–—]|\b(?:is|was|are|be|now|ist|lautet|sind|war|es|est|é|è|jest|är|er|to|on|это|use|again|and))[ ]{0,3}[*_"'`(]{0,3}$"""
)
_OF = re.compile(
    r"[ ]?[#*]?|[ ](?:for|to|of|on|at|de|du|del|della|do|da|der|des|di|vom|am|beim|von|für|zur|zum|van|voor|till|til|от|od|d['’]|your|my|the|sim|card)[^:;,.]{0,40}[ ]|[ ][A-Za-z]{3,12}[ ]"
)
_LOCKED = re.compile(rf"(?i)(?<![a-z])(?:{_OPENS}|safe|lock)(?![a-z])")
_GIVEN = re.compile(
    rf"""(?i)(?P<value>\d(?<![\w.,:/#-].)(?:\d{{3,7}}[#*]?|\d?(?:-\d{{1,2}}){{2,3}}))[)\]"'`*]{{0,2}}[ ](?:(?:is|was|will[ ]be)[ ](?:the|our|my|your|her|his|their|a)[ ](?:\w{{1,14}}[ ]){{0,3}}?(?:code|pin|combination|combo|passcode)\b|(?:opens|unlocks|disarms)[ ](?:the|our|my)?[ ]?|(?:at|on|into|to|for)[ ](?:open[ ]|unlock[ ]|disarm[ ]|enter[ ])?(?:the|our|my)[ ](?:\w{{1,10}}[ ])?(?:{_OPENS})(?![a-z]))"""
)
_PRESSED = re.compile(
    r"(?i)(?:press|enter|dial|punch(?: in)?|type|key in|use|try|it['’]s|is|code|with|then)[ ](?:[*#][ ](?:then[ ])?|\*)?[\"'`*]?$"
)
_OPENED_WITH = re.compile(
    r"(?i)(?:disarm|unlock|open)(?:s|ed|ing)?(?:[ ][\w-]{1,14}){0,3}?[ ](?:with|using|by)[ ](?:code[ ])?[\"'`]?(?P<value>\d{4,8}[#*]?)(?![\w.,:/-]*\d|\w)"
)
_OPENED = Anchors("disarm", "unlock", "open")
_KEYED_IN = re.compile(
    r"(?i)(?:press|enter|dial|punch(?: in)?|type(?: in)?|key in|tippe|marque|pulsa|digita)[ ](?:[*#][ ]?(?:then[ ]|and[ ])?)?[\"'`]?(?P<value>\d{4,8}[#*]?)(?![\w.,:/-]*\d|\w)"
)
_OPENERS = Anchors("opens", "unlocks", "disarms", "code", "combin", "keypad", "alarm", "gate", "door", "safe", "lock")
_KEYS = Anchors("press ", "enter ", "dial ", "punch ", "type ", "key in ", "tippe ", "marque ", "pulsa ", "digita ")


def in_codes_given(piece: Text) -> Iterator[Span]:
    """`4471 is the alarm code`, `4471# opens the gate`, `press 4471 on the keypad`."""
    if _OPENERS.absent(piece):
        return
    for match in _GIVEN.finditer(piece.text):
        said = match[0][match.end("value") - match.start() :].lower()
        if any(word in said for word in (" is ", " was ", " be ", "opens", "unlocks", "disarms")) or _PRESSED.search(
            piece.text, max(0, match.start() - 14), match.start()
        ):
            yield Span(*match.span("value"), "password")
    for at in _OPENED.places(piece):
        if match := _OPENED_WITH.match(piece.text, at):
            yield Span(*match.span("value"), "password")
    for at in _KEYS.places(piece):
        match = _KEYED_IN.match(piece.text, at)
        if match and _LOCKED.search(piece.text[max(0, at - 60) : match.end() + 40]):
            yield Span(*match.span("value"), "password")


_RECOVERY = re.compile(
    r"(?i)(?:(?:recovery|backup|back-up|scratch|emergency|one-time|single-use|2fa|mfa|rescue|bypass|reset)[ _-]?(?:login[ ])?(?:codes?|tokens?|keys?)|(?:wiederherstellungs|notfall|ersatz|einmal|rettungs|backup-?)(?:codes?|schlüssels?)|códigos? de (?:recuperación|respaldo|recuperação|backup|reserva|emergencia|emergência|segurança)|codes? de (?:secours|récupération|sauvegarde)|clés? de (?:secours|récupération)|clave de recuperación|chiave di recupero|codic[ei] di (?:recupero|backup|riserva|emergenza)"
    r"|(?:herstel|back-up|reserve)codes?|herstelsleutel|kod(?:y|u)? (?:zapasow[yeai]\w{0,2}|odzyskiwania|ratunkow[ye])|klucz odzyskiwania|(?:резервн\w{1,3}|запасн\w{1,3}) код\w{0,3}|код\w{0,2} восстановления|ключ восстановления|återställningskod\w{0,4}|gendannelseskode\w{0,3}|gjenopprettingskode\w{0,3}|palautuskood\w{0,4}|kurtarma (?:kod\w{0,5}|anahtar\w{0,3})|yedek kod\w{0,5}|záložní kód\w{0,3}|obnovovací kód\w{0,3}|helyreállítási kód\w{0,3}"
    r"|バックアップコード|リカバリーコード|復旧コード|回復キー|恢复代码|恢复密钥|恢复码|备用码|备份码|備用碼|復原碼|백업 ?코드|복구 ?코드|복구 ?키|mã khôi phục|mã dự phòng|kode (?:pemulihan|cadangan)|रिकवरी कोड|رموز? الاسترداد|رمز الاسترداد|קוד שחזור|קודי גיבוי)"
)
_RECOVERIES = Anchors(
    "recovery", "backup", "back-up", "scratch", "emergency", "one-time", "single-use", "mfa ", "2fa token", "2fa code", "2fa key", "rescue", "bypass", "reset code", "reset key", "wiederherstell", "notfall", "ersatz", "einmal", "rettungs", "c?digo", "codic", "codes de", "code de", "cl?s de", "cl? de", "clave de", "chiave di", "herstel", "kody ", "kod zap", "kod odz", "kodu ", "klucz ", "?terst", "gendannelses", "gjenopprettings", "palautuskood", "kurtarma", "yedek", "kode pem", "kode cad",
)  # fmt: skip
_RECOVERIES_BEYOND = (
    "код",
    "ключ восст",
    "kód",
    "バックアップ",
    "リカバリー",
    "復旧",
    "回復",
    "恢复",
    "备用",
    "备份",
    "備用",
    "復原",
    "백업",
    "복구",
    "mã ",
    "रिकवरी",
    "رمز",
    "رموز",
    "קוד",
)
_CODE = re.compile(
    r"(?P<code>[A-Za-z0-9]{3,24}(?:-[A-Za-z0-9]{3,12}){0,9}|\d{3,6}(?:[ ]\d{3,6}){1,7}|(?-i:(?=[A-Za-z ]{0,24}\d)(?=[a-z0-9 ]{0,24}[A-Z])[A-Za-z0-9]{4}(?:[ ][A-Za-z0-9]{4}){2,11}))(?![\w-])"
)
_LEAD = re.compile(
    r"""(?i)(?:["'’]?s?\]?\)?[ ]{0,2}(?:\((?:[^()\n]{1,40})\)[ ]?)?)(?:(?:[ ][\w.'’@-]{1,20}){0,7}?[ ]{0,2}(?:[:=]|is\b|are\b|ist\b|lautet\b|sind\b|est\b|sont\b|es\b|son\b|è\b|sono\b|é\b|são\b|to|は|是|：|は、|->|→)?[ ]{0,2}[*_"'`(\[]{0,3}[ \t\r\n>*•|`"'\[\\-]{0,12}(?:\d{1,2}[.)][ ]{1,3})?[`"'*]{0,2})"""
)
_NEXT = re.compile(
    r"""(?i)[`"'*\])]{0,2}[ \t]{0,8}(?:,|;|\||/|&|·|\band\b|\bund\b|\bet\b|\by\b|\be\b|\boder\b)?[ \t]{0,8}(?:and[ ])?(?:\r?\n[ \t>*•|-]{0,8}){0,2}(?:\d{1,2}[.):][ ]{1,3}|-[ ]|\[[ x]?\][ ])?[`"'*]{0,2}"""
)
_OTHER_SCRIPT = re.compile("[ãíó\u0400-\u04ff\u0590-\u06ff\u0900-\u097f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_MOST_CODES = 24


def in_recovery_codes(piece: Text) -> Iterator[Span]:
    """Recovery codes behind their name or below it, in whatever language and however many."""
    text = piece.text
    found = [] if _RECOVERIES.absent(piece) else _RECOVERIES.places(piece)
    beyond = (
        set()
        if text.isascii() or not _OTHER_SCRIPT.search(text)
        else {at for word in _RECOVERIES_BEYOND for at in places(piece.lower, word)}
    )
    done = -1
    for at in sorted({*found, *beyond}):
        if at < done:
            continue
        name = _RECOVERY.search(text, max(0, at - 20), at + 40) if at in beyond else _RECOVERY.match(text, at)
        if name is None:
            continue
        done = name.end()
        for length in range(_MOST_LEADS):
            lead = _LEAD.match(text, done) if length == 0 else _SHORT_LEAD.match(text, done)
            codes = _codes_from(text, lead.end()) if lead else []
            if codes:
                done = codes[-1].end()
                yield from (Span(*code.span("code"), "password") for code in codes)
                break


_MOST_LEADS = 2
_SHORT_LEAD = re.compile(r"[^\n:]{0,80}:[ \t]{0,4}[\r\n>*•|`\"'\[ \t-]{0,12}(?:\d{1,2}[.)][ ]{1,3})?[`\"'*]{0,2}")


def _codes_from(text: str, at: int) -> list[re.Match[str]]:
    codes: list[re.Match[str]] = []
    while len(codes) < _MOST_CODES and (code := _CODE.match(text, at)):
        if not _may_be_code(code["code"]):
            break
        codes.append(code)
        between = _NEXT.match(text, code.end())
        if between is None or between.end() == code.end():
            break
        at = between.end()
    with_digit = sum(DIGIT.search(code["code"]) is not None for code in codes)
    if len(codes) == 1:
        value = codes[0]["code"]
        return codes if (mixed(value) and len(value) >= 7) or len(re.sub(r"\D", "", value)) >= 6 else []
    return codes if 2 * with_digit > len(codes) else []


def _may_be_code(value: str) -> bool:
    return (
        (DIGIT.search(value) is not None and (len(value) >= 6))
        or ("-" in value and len(value) >= 9)
        or (value.isdigit() and len(value) >= 4)
    )
