# ruff: noqa: E501 - expressions and templates stay lines
"""Finds secrets in forms that identify them: one-time secrets, wallets, PINs, constructors, joined literals."""

import re
from collections.abc import Callable, Iterator

from clawctl.extensions.secrets.commands import SAFE_FLAG, is_given
from clawctl.extensions.secrets.formats import FORMAT, ISSUED, is_issued, is_key
from clawctl.extensions.secrets.names import is_secret_under
from clawctl.extensions.secrets.text import (
    BLOBS,
    COMMAS,
    QUOTES,
    AnchorGroups,
    Anchors,
    Span,
    Text,
    anchors_of,
    positions_of,
    regex,
    tried_at,
)
from clawctl.extensions.secrets.values import (
    DIGIT,
    entropy,
    is_chosen,
    is_opaque,
    is_passphrase,
    is_random,
    is_stand_in,
    is_strong_key,
    is_strong_password,
    is_stronger_password,
    is_wordy,
    mixed,
)  # fmt: skip

_BASE32 = r"(?:[A-Z2-7]{16,128}|[a-z2-7]{16,64}|(?:[A-Z2-7]{4}[ -]){3,15}[A-Z2-7]{4}|(?:[a-z2-7]{4}[ -]){3,15}[a-z2-7]{4})"


def _is_seed(value: str) -> bool:
    bare = re.sub("[ -]", "", value)
    return len(bare) >= 16 and entropy(bare) >= 3.0 and (DIGIT.search(bare) is not None or bare.isupper())


def _is_pair(value: str) -> bool:
    _user, _, secret = value.partition(":")
    return is_strong_password(secret, 6) and not is_wordy(secret)


def _is_salt(value: str) -> bool:
    """Whether the value has letters and at least six different special characters, like generated salts. It may contain spaces."""
    return len(set(_SIGN.findall(value))) >= 6 and mixed(value)


_SIGN = regex(r"[^\w\s]")


def _is_loose(value: str) -> bool:
    return not is_stand_in(value) and not SAFE_FLAG.match(value)


def _is_generated(value: str) -> bool:
    """Whether the value mixes letters, digits and special characters and looks generated."""
    return is_stronger_password(value) and (is_chosen(value) or re.search(r"\w[!#$%^&*+=~?]+\w|[!#$%*?]", value) is not None)


def _is_derived(value: str) -> bool:
    """Whether the value is digits, or capitals and digits: `the last 8 of the serial, i.e. GN330T5C`."""
    bare = value.rstrip(".,;)")
    return (
        (bare.isdigit() and len(bare) <= 12)
        or (mixed(bare) and bare.isalnum() and not bare.islower())
        or is_stronger_password(bare)
    )


def _is_network_word(value: str) -> bool:
    """Whether the value is words and a number (`aurora-8812`), or looks generated."""
    return is_stronger_password(value) or (_WORDS_AND_NUMBER.fullmatch(value) is not None and not is_stand_in(value))


_WORDS_AND_NUMBER = regex(r"[^\W\d_]{3,14}(?:[-_.][^\W\d_]{2,14}){0,3}[-_.]?\d{2,6}[!?#*]?")


# Patterns that must precede some of the words.
_OPTION = regex(r"(?:^|[\s\"'\[,])-{1,2}[\w-]{0,24}$")
_NEEDED_BEFORE = {
    "&that is": regex(r"(?i)(?:(?&password)|passw|\bpw|\bpwd|\bpin\b)[^\n]{0,60}$"),
    '"-p': regex(r"(?i)(?:mysql|mariadb)\w{0,12}[\"'][^\n]{0,50}$"),
    '"p":': regex(r'"(?:u|user(?:_?name)?|login|email|name|account)"\s{0,3}:\s{0,3}"[^"\n]{1,48}",\s{0,8}$'),
    "pass": _OPTION,
    "user": regex(r"(?i)(?:add|create|change|set|update|reset|new)[ _-]?$"),
    "<<<": regex(
        r"(?i)(?:sudo|passwd|login|sign-?in|unlock|decrypt|keyring|kinit|cryptsetup|openssl|gpg|htpasswd|auth|passphrase|read)\b[^\n]{0,60}$"
    ),
    '"key"': regex(r"(?i)\"(?:user(?:_?name)?|login|account)\"\s{0,3}:\s{0,3}\"[^\"{}]{1,40}\",\s{0,12}$"),
    "reset it to ": regex(r"(?i)(?:passw|passphrase|passcode|\bpw|\bpwd|\bpin\b|login)[^\n]{0,60}$"),
    "send": regex(r"(?i)(?:p?ass(?:word|phrase|wd)?)\b[^\n]{0,30}(?:\n[^\n]{0,30})?$"),
}
# For each entry: anchor words, the pattern tried at each anchor, and the check that its value must pass.
_FORMS: tuple[tuple[Anchors, re.Pattern[str] | None, re.Pattern[str], Callable[[str], bool]], ...] = tuple(
    (Anchors(*anchors_of(words)), _NEEDED_BEFORE.get(words.split(",")[0]), regex(pattern), check)
    for words, pattern, check in (
        ("prv", r"prv(?P<value>[A-Za-z0-9]{90,112})(?![A-Za-z0-9])", is_random),
        ("otp,2fa,mfa,authenticator,seed", rf"(?<![0-9a-f]{{6}})(?i:otp|2fa|mfa|authenticator|seed)(?:[ _-]?(?i:secret|seed|key|code|token|app|backup|setup|manual|entry|base32)){{0,3}}[\"'`]{{0,2}}(?:[ ]?(?i:is|are|with|the|for [\w.]{{1,20}}|:|=|=>|,|\()[ ]?){{0,3}}[ ]{{0,2}}[\"'`]{{0,2}}(?P<value>{_BASE32})(?![A-Za-z0-9+/=_-])", _is_seed),
        ("otpauth:", r"otpauth://[^\s\"']{1,200}?secret=(?P<value>[A-Za-z2-7]{16,128})", bool),
        ("pwd={,password={", r"(?i)(?:pwd|password)=\{(?P<value>[^{}\n]{3,128})\}", lambda value: is_strong_password(value, 6)),
        ("wifi:", r"(?i)wifi:[^\n]{0,100}?;?p:(?P<value>[^;\n]{4,64});", _is_loose),
        ("storepass,keypass", r"(?i)(?:store|key)pass(?:word)?[ =][\"']?(?P<value>[^\s\"'-][^\s\"']{3,128})", _is_loose),
        ("echo ,printf ", r"(?i)(?:echo|printf)(?:[ ]-\w{1,3})?[ ][\"']?[\w.@-]{1,40}:(?P<value>[^\s\"'|\\]{4,128})(?:\\n)?[\"']?[ ]{0,2}\|[ ]{0,2}(?:sudo[ ])?(?:/usr/s?bin/)?(?:ch|ht)passwd", _is_loose),
        ("chpasswd", r"(?i)chpasswd[ ]{0,2}<<<[ ]{0,2}[\"']?[\w.@-]{1,40}:(?P<value>[^\s\"']{4,128})", _is_loose),
        ("securestring", r"(?i)securestring[ ]+(?:-string[ ]+)?(?:-\w{1,14}[ ]+){0,2}[\"'](?P<value>[^\"'\n]{4,128})[\"']", _is_loose),
        ("networkcredential", r"(?i)networkcredential\([ ]?[^\"',()\n]{0,3}[\"']?[^\"',()\n]{1,60}[\"']?,[ ]?@?[\"'](?P<value>[^\"'\n]{4,128})[\"']", _is_loose),
        ("session(", r"(?i)session\(\s{0,4}\{[^{}]{0,200}?\bsecret[\"']?:[ ]?[\[]?[\"'`](?P<value>[^\"'`\n]{4,128})[\"'`]", _is_loose),
        ("u:,u=,user:,user=,user ,l:", r"(?i)(?<![a-z])(?:u|user|l|login)[:= ][ ]?[^\s,;:/]{1,40}[ ,;/|]{1,3}(?:and[ ])?(?:p|pw|pass|pwd|password|(?&password))[:= ][ ]?[\"'`]?(?P<value>[^\s\"'`]{4,64})", is_strong_password),
        ("root,admin,postgres,ubuntu,demo ,guest ", r"(?i)(?<![\w:/.@-])(?:root|admin|administrator|postgres|ubuntu|demo|guest)(?::|[ ]{1,2}[/|–—][ ]{1,2}|[ ]?,[ ]|[ ]with[ ])[\"'`]?(?![a-z_]{1,24}=)(?P<value>[^\s:\"'`]{6,64})(?![\w:])", is_stronger_password),
        ("root ,administrator ,admin ", r"(?i)(?<![\w:/.@-])(?:root|admin|administrator)[ ](?P<value>[^\s:\"'`()=,]{8,64})(?=\s|$)", _is_generated),
        ("root/,admin/,administrator/", r"(?i)(?<![\w:/.@-])(?:root|admin|administrator)/(?P<value>[^\s:\"'`/]{6,64})(?=[\s\"',;.)]|$)", _is_generated),
        ("pw ,password ,&words for a password", r"(?i)(?<![a-z])(?:pw|password|(?&words for a password))[ ](?P<value>\d{6,12})(?=[ ]?(?:$|[\n,;)]|\.(?:\s|$)))", bool),
        ("server key ,server host ,message-digest-key ,key-string ,authentication-key ", r"(?i)(?:server(?: host \S{1,60})?[ ]key|message-digest-key[ ]\d{1,3}[ ]md5|key-string|authentication-key(?:[ ]\d{1,5}[ ]\w{2,6})?)[ ](?:\d[ ])?[\"']?(?P<value>[^\s\"']{4,128})", _is_loose),
        ("-p ,-pw ,-w ", r"(?<=[ ])-{1,2}(?:p|pw|w)[ ][\"']?(?P<value>[^\s\"'`/$]{8,64})(?=[\"']?(?:\s|$))", _is_generated),
        ('"p":,"pw":,"pwd":', r'"(?:p|pw|pwd)"\s{0,3}:\s{0,3}"(?P<value>[^"\n\\]{4,128})"', _is_loose),
        ("/v ", r"(?i)/v \S{0,24}(?:pass\w{0,8}|pwd|secret|token)\S{0,12}(?: /t \S{1,16})? /d [\"']?(?P<value>[^\s\"']{4,128})", _is_loose),
        ("/rp ", r"/rp [\"']?(?P<value>[^\s\"'/]{4,64})", _is_loose),
        ("option key,option psk", r"option (?:key|psk)\w{0,8}[ \t]{1,4}[\"'](?P<value>[^\"'\n]{8,64})[\"']", is_stronger_password),
        ("nickserv identify ,/oper ", r"(?i)(?:nickserv[ ]identify|/oper)[ ](?:[\w-]{1,24}[ ])?(?P<value>[^\s\"']{6,64})(?=\s|$)", is_strong_password),
        ("login ", r"(?i)login [\w.+-]{1,64}@[\w.-]{3,64} [\"']?(?P<value>[^\s\"']{6,64})", is_stronger_password),
        ("api=,api:,api =,api\"", r"(?i)(?<![a-z0-9.])api[\"']?[ ]?[:=][ ]?[\"']?(?P<value>[A-Za-z0-9._+=-]{20,128})(?![\w/.:-])", is_strong_key),
        ("\"-p,'-p", r"[\"']-p(?P<value>[^\s\"'=-][^\s\"']{3,64})[\"']", _is_loose),
        ("net use ", r"(?i)net use [^\s]{1,8} \\{2,4}\S{1,80} (?P<value>[^\s\"'/*]{4,128})(?=\s|$)", _is_loose),
        ("user,passw,login", r"(?i)(?:user|passw(?:or)?d|login)[ ]+[\w.@-]{1,40}[ ]+[\"']?(?P<value>[^\s\"'-][^\s\"']{4,64})", is_stronger_password),
        ("<<<", r"<<<[ ]{0,2}(?P<quote>[\"'])?(?P<value>(?(quote)[^\"'\n$]|[^\s\"'$]){4,128})", _is_loose),
        ("send", r"send(?:line)?\(?[ ]?(?:--[ ])?[\"'](?P<value>[^\"'\n\\]{4,128})(?:\\[rn]){0,2}[\"']", _is_loose),
        ("wpa_passphrase ", r"wpa_passphrase (?:[\"'][^\"'\n]{1,40}[\"']|\S{1,40}) [\"']?(?P<value>[^\s\"']{8,64})", _is_loose),
        ("key", r"(?i)key[\"']?\s{0,3}[:=]\s{0,3}(?:(?:bytes|bytearray)\.fromhex\(|unhexlify\(|b)[\"'](?P<value>[^\"'\n]{16,256})[\"']", is_strong_key),
        ("key", r"(?i)key[ ]{0,3}[:=][ ]{0,3}[\"'](?P<value>[^\"'\n]{16,256})[\"']\.(?:getbytes|tobytearray|encode|data)\(", is_strong_key),
        ("passphrase,pass phrase,pass-phrase,passwor", r"(?i)pass(?:[ -]?phrase|wor[dt])s?\b[^\n:=]{0,60}?(?:[:=]>?|->|→|[ ](?&is)|(?=[ ][\"'`]))[ ]{0,2}[\"'`]?(?P<value>[a-z]{3,10}(?:[ ][a-z]{3,10}){3,7})(?=[\"'`]|$|\n)", is_passphrase),
        ("securestring", r"(?i)securestring[ ]+--value[ =]+[\"']?(?P<value>[^\s\"']{4,128})", _is_loose),
        ("password", r"(?i)password\w{0,12}(?::[ ]?\w{1,16})?[ ](?:by|=)[ ]\w{1,16}\([\"'](?P<value>[^\"'\s]{4,128})[\"']\)", is_strong_password),
        ("user ", r"(?i)user[ ]\w{1,32}[ ](?:[\w+@~*-]{1,20}[ ]){0,4}>(?P<value>[^\s]{4,128})", is_strong_password),
        ("isakmp key ", r"(?i)isakmp key (?:\d )?(?P<value>\S{4,64})[ ]+(?:address|hostname)", _is_loose),
        (": eap,: psk,: xauth", r"(?i): (?:eap|psk|xauth)[ ]+\"(?P<value>[^\"\n]{4,128})\"", _is_loose),
        ("community ", r"(?i)community (?!public\b|private\b)[\"']?(?P<value>[^\s\"']{4,64})[\"']?[ ](?:ro|rw)\b", _is_loose),
        ("register ", r"register[ ][\w.@-]{1,40}[ ][\w.-]{3,60}[ ](?P<value>[^\s\"']{6,64})(?=\s|$)", is_strong_password),
        (" /p ", r"[ ]/p[ ][\"']?(?P<value>[^\s\"']{6,64})", is_stronger_password),
        ("@", r"@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}[\"'`)]?(?:[:;,|]|[ ]{1,2}[/|][ ]{1,2}|[ ]{0,2}(?:[:;,]|->|→|—|–)[ ]{0,2}|\t|[ ]{1,3}-[ ]|[ ](?:(?&and)|with|pw|pass|password)[ :]{1,2})[\"'`]?(?P<value>[^\s\"'`/|,;]{6,64})(?=[\"'`,;)]?(?:\s|$))", is_stronger_password),
        ("pass,pwd", r"(?i)pass\w{0,6}(?:-(?:command|file))?[ =][\"'<$(]{1,3}(?:echo|printf)[ ](?:-\w[ ])?[\"']?(?P<value>[^\s\"')$]{4,128})", _is_loose),
        ("add-mask::", r"add-mask::(?P<value>[^\s]{4,512})", lambda value: not is_stand_in(value)),
        ("user =,user=,user: ,userpwd", r"(?i)user(?:pwd)?[\"']?[ ]{0,4}[=:][ ]{0,4}[\"']?[\w.@+-]{1,64}:(?P<value>[^\s\"'/]{6,128})[\"']?(?=\s|$)", is_stronger_password),
        ("_pw ", r"_pw[ ](?P<value>[^\s\"']{4,64})(?=\s|$)", _is_loose),
        ("openssl passwd", r"openssl[ ]passwd[ ](?:-\w{1,8}[ ]){0,3}[\"'](?P<value>[^\"'\n]{4,128})[\"']", _is_loose),
        ("private-key ", r"private-key[ ]<\((?:echo|printf)[ ][\"']?(?P<value>[A-Za-z0-9+/]{40,60}={0,2})", bool),
        ("passw,passp,_pass", r"(?i)_?pass\w{0,12}=\$\(cat[ ]<<-?[ ]?[\"']?\w{2,12}[\"']?\n(?P<value>[^\n]{4,128})\n", _is_loose),
        ("&that is", r"[^\d\s]{2,12}(?: (?&that goes on)){0,2},? [\"'`*]{0,2}(?P<value>[^\s\"'`*]{6,40})", _is_derived),
        ("credentials:", r"(?i)credentials:[ ]*\r?\n(?:[ -]{1,40}(?!key|secret|token)[\w-]{1,32}:[ ][^\n]{0,120}\r?\n){0,4}[ -]{1,40}(?:key|secret|token|password):[ ]{1,4}[\"']?(?P<value>[^\s\"'$]{5,200})", _is_loose),
        ("bitwarden,vaultwarden,keepass,1password,lastpass,dashlane,enpass,nordpass,proton pass,keychain,truecrypt,veracrypt,cryptomator,luks", r"(?i)\w{4,12}(?:[ ](?:master|main|vault|login|unlock|pw|pass|db|database|file|container|volume|is|for \w{2,12}))*(?:[ ]{0,2}(?:=|:|->|→)|[ ]is)[ ]{1,2}[\"'`]?(?P<value>[^\s\"'`]{8,128})", lambda value: is_passphrase(value) or is_stronger_password(value)),
        ("hotspot,wi-fi,wifi,wlan,ssid", r"(?i)[^\n]{2,60}?(?<![a-z])(?&network key)(?: (?&is)|[ ]?[:=])[ ]{1,2}[\"'`*]{0,2}(?P<value>[^\s\"'`*]{7,62}[^\s\"'`*.,;:)])", _is_network_word),
        ("oathtool", r"oathtool[ ](?:-[\w=-]{1,12}[ ]){0,6}(?P<value>[A-Z2-7]{16,64}=*)", bool),
        ("<d>,<p>,<q>,<dp>,<dq>,<inverseq>", r"(?i)<(?:d|p|q|dp|dq|inverseq)>(?P<value>[A-Za-z0-9+/]{40,1024}={0,2})</", bool),
        ("requirepass ,masterauth ", r"(?:requirepass|masterauth)[ ]+[\"']?(?P<value>[^\s\"'$<]{4,128})", _is_loose),
        ("--passphrase,-passphrase", r"-{1,2}passphrase[ =][\"'](?P<value>[^\"'\n]{6,128})[\"']", is_passphrase),
        ("was changed from ,changed from ,reset from ", r"\w{0,4} ?(?:changed|reset) from[ ][*_\"'`]{0,3}(?P<value>[^\s\"'`*]{6,64})", is_stronger_password),
        ("secret ,password ", r"(?i)(?:secret|password) \d (?P<value>[^\s\"']{4,128})", is_strong_password),
        ("bw unlock ", r"bw unlock[ ][\"']?(?!-)(?P<value>[^\s\"']{6,128})", _is_loose),
        ("net user", r"(?i)net user[ ][\w.@-]{1,40}[ ][\"']?(?P<value>[^\s\"'/]{4,64})", _is_loose),
        ("openssl", r"openssl[ ][^\n|;&]{0,120}?[ ]-(?:k|K|pass)[ ][\"']?(?!pass:|file:|env:|stdin)(?P<value>[^\s\"'-][^\s\"']{4,128})", _is_loose),
        ("/p:", r"(?<=[ ])/p:[\"']?(?P<value>[^\s\"']{4,64})", _is_loose),
        ("auth ", r"(?i)(?<![\w.@-])auth (?:plain|login|xoauth2|cram-md5|ntlm) (?P<value>[A-Za-z0-9+/]{12,1024}={0,2})", bool),
        ("auth ", r"(?i)(?<![\w.@-])auth (?:\w{1,24} )?(?P<value>[^\s\"']{6,128})(?=\s|$)", lambda value: is_stronger_password(value) and value.count("/") < 2),
        (" login ", r"(?<=\w) LOGIN [\w.@+-]{1,64} [\"']?(?P<value>[^\s\"']{4,128})", _is_loose),
        ("machine ", r"machine\s{1,4}[\w.-]{1,80}\s{1,4}login\s{1,4}\S{1,80}\s{1,4}password\s{1,4}(?P<value>\S{3,128})", _is_loose),
        ("community", r"(?i)community[ ](?:string[ ])?[\"']?(?P<value>[^\s\"']{6,64})", is_stronger_password),
        ("pypi-token.", r"pypi-token\.\w{1,24}[ ](?P<value>[^\s]{12,400})", bool),
        ("secret set", r"(?i)secret[ ]set[ ][\w-]{1,60}[ ][^\n]{0,60}?(?:--body|-b)[ =][\"']?(?P<value>[^\s\"'$][^\s\"']{5,2000})", _is_loose),
        ("begin(,pdo(", r"(?i)(?:begin|pdo)\((?:[\"'][^\"'\n]{0,120}[\"']|[$@\w.]{1,40}),[ ]?(?:[\"'][^\"'\n]{0,60}[\"'],[ ]?)?[\"'](?P<value>[^\"'\s]{4,128})[\"']", lambda value: is_strong_password(value, 6)),
        (".auth(", r"(?i)\.auth\([\"'](?P<value>[^\"'\s]{4,128})[\"']\)", _is_loose),
        ("_key,_salt", r"(?i)_(?:key|salt)[\"']?[ ]{0,3}(?:,|=>?|:)[ ]{0,16}(?P<quote>[\"'])(?P<value>(?:(?!(?P=quote))[^\n]){24,128})(?P=quote)", _is_salt),
        ("\"key\"", r"\"key\"\s{0,3}:\s{0,3}\"(?P<value>[^\"\s\\]{16,128})\"", is_strong_key),
        ("\"key", r"\"key\"\s{0,3}:\s{0,3}\"(?P<value>[^\"\s\\]{16,128})\",\s{0,12}\"(?:user(?:_?name)?|login|account)\"", is_strong_key),
        ("set password for ", r"(?i)set password for [^\n=]{1,80}=[ ]?(?:password\()?[\"'](?P<value>[^\"'\n]{4,128})[\"']", _is_loose),
        ("use ,enter ", r"(?i)(?:use|enter)[ ](?:the )?(?:code )?(?P<value>\d{4,8})[ ](?:to[ ](?:verify|log|sign|confirm|authenticate|complete|finish|continue|reset|unlock|activate)|as[ ](?:[\w-]{1,16}[ ]){0,4}(?:code|otp|pin|password)\b)", bool),
        ("enable secret ,enable password ", r"(?i)enable (?:secret|password) (?:level \d{1,2} )?(?:\d )?(?P<value>[^\s\"']{4,128})", is_strong_password),
        ("pre-shared-key ", r"(?i)pre-shared-key (?:(?:local|remote|ascii-text|hex|address \S{1,60}) ){0,3}(?:key )?(?:\d )?[\"']?(?P<value>[^\s\"']{4,128})", is_strong_password),
        ("reset it to ,changed it to ,change it to ,set it to ,reset to ,it is now ,it's now ", r"(?:reset|changed?|set|it)(?:['’]s| is)?(?: it)? (?:to|now) [\"'`*]{0,2}(?P<value>[^\s\"'`*]{6,64})", is_stronger_password),
        ("bindpw,rootpw,rootbindpw", r"(?i)(?:bind|root|rootbind)pw(?:[ ]--(?:plaintext|iscrypted))?[ \t]{1,8}[\"']?(?P<value>[^\s\"']{4,128})", _is_loose),
        ("alias set ,host add ", r"(?:alias set|host add)[ ][\w.-]{1,40}[ ]https?://[^\s]{1,120}[ ][\"']?[^\s\"']{1,64}[\"']?[ ][\"']?(?P<value>[^\s\"'$-][^\s\"']{7,128})", _is_loose),
        ("configure set ", r"configure set (?:[\w.-]{1,60}\.)?(?:aws_secret_access_key|aws_session_token)[ ][\"']?(?P<value>[^\s\"'$]{16,4000})", _is_loose),
        ("00d", r"(?P<value>00D[A-Za-z0-9]{12,15}![\w.]{60,160})", bool),
        ("flyv1 ", r"(?P<value>(?i:flyv1) fm\d[ar]?_[\w+/=,-]{40,4000})", bool),
        ("log in,login,logging in,sign in,signin,account,user,ssh,access,credential", r"(?i)(?:log[ ]?in|logging in|sign[ ]?in|account|user(?:name)?|ssh|access|credentials?)\b(?:[ :]{1,2}[\w.@-]{1,24}){0,4}?[ :]{1,2}[\"'`]?[\w.@-]{2,48}[\"'`]?[ ](?:/|\||and|with)[ ](?:pw[ ])?[\"'`]?(?![A-Za-z][\w.-]{1,24}=)(?P<value>[^\s\"'`/|]{6,64})", is_stronger_password),
        ("__", r"__(?:COM|ORG|IO|NET|DEV|CO|AI|APP|CLOUD|DE)(?:__\w{1,30})?[\"']?[=:][ ]?[\"']?(?P<value>[^\s:\"'=]{1,64}:[^\s\"']{6,128})", _is_pair),
        ("bundle config,http-basic.", r"(?:bundle config|http-basic\.)(?:[ ]--?\w{2,8}|[ ]set)*+[ ]?[\w./:-]{3,80}[ ][\"']?(?P<value>[^\s:\"']{1,64}[: ][\"']?[^\s\"']{6,128})", lambda value: _is_loose(value.partition(" ")[2])),
        ("random_password", r"random_password\"[^\n]{0,20}(?:[^\"]{0,60}\"){1,24}?result\"\s{0,3}:\s{0,3}\"(?P<value>[^\"\n]{6,128})\"", _is_loose),
        ("securitykey(,secretkeyspec(", r"(?i)(?:securitykey|secretkeyspec)\((?:[\w.]{1,40}\()?[\"'](?P<value>[^\"'\s]{8,128})[\"']", lambda value: is_strong_password(value) or is_passphrase(value)),
        ("\"keyname\"", r"(?i)\"keyname\"[^{}]{0,160}?\"value\"\s{0,3}:\s{0,3}\"(?P<value>[^\"\s]{20,128})\"", is_strong_key),
        ("]:", r"\]:\d{2,5}[ \t]{1,8}[\w.@+-]{2,80}:(?P<value>[^\s\"']{6,128})(?=\s|$)", is_strong_password),
        ("chap", r"(?i)chap\b[^\n]{0,60}(?:\n[#;][^\n]{0,80}){0,3}\n[^\s#]{1,40}[ \t]{1,8}\S{1,40}[ \t]{1,8}\"?(?P<value>[^\s\"*]{6,64})", is_strong_password),
        ("ugfzc3dvcmq6", r"UGFzc3dvcmQ6\r?\n(?:[<>\w]{1,6}[: ]{1,2})?(?P<value>[A-Za-z0-9+/]{4,128}={0,2})(?=\s|$)", bool),
        ("pass insert", r"pass insert[^\n]{0,80}<<-?[ ]?[\"']?\w{2,12}[\"']?\n(?P<value>[^\n]{4,128})\n", _is_loose),
        ("-u ,--user ", r"(?<=[ ])-{1,2}u(?:ser(?:name)?)?[ =][\w.@+-]{1,60}[ ](?:-{1,2}\w[\w-]{0,16}[ =][\w./:+-]{1,80}[ ]){0,2}-{1,2}p(?:ass(?:word)?)?[ =]?[\"']?(?P<value>[^\s\"'$/-][^\s\"']{5,128})", is_strong_password),
        ("lpa:", r"(?i)lpa:1\$[\w.-]{4,80}\$(?P<value>[\w-]{4,64})", _is_loose),
        ("steam guard", r"(?i:steam guard)[^\n:]{0,60}[: ]{1,3}[\"'`*]{0,2}(?P<value>(?=[A-Z]{0,4}\d)[2-9A-HJ-NP-Z]{5})(?![\w-])", bool),
        ("text=,text\":", r"text[\"']?[=:][ ]?[\"'](?P<value>\d{4,8})[\"'][^\n]{0,60}?\b(?i:pin|otp|passcode|password|verification code|security code|2fa)\b", bool),
        ("setup code,pairing code,manual code", r"(?i)(?:setup|pairing|manual) code\b[^\n\d]{0,60}(?P<value>\d{4}-\d{3}-\d{4}|\d{3}-\d{2}-\d{3}|\d{11}|\d{8})(?![\w-])", bool),
        ("2fa,otp,mfa", r"(?i)(?:2fa|otp|mfa)\b[^\n\d]{0,40}\b(?:use|enter|type|put|try|with|is)[ ](?P<value>\d{6})(?![\w.,-]\d|\w)", bool),
        ("setpin ,set-pin ,--pin ,--pin=", r"(?i)(?:set-?pin|--pin)[ =](?P<value>\d{4,12})(?!\w)", bool),
        ("&use a code", r"(?i)\w{3,10}(?: (?&you))?(?: (?&the code))?[ ](?P<value>\d{4,8})[ ](?&in order to)[ ](?:[\w']{1,12}[ ]){0,3}(?&log in)\b", bool),
        ("login,auth,activate,register,connect", r"(?i)(?:login|auth|activate|register|connect|authenticate)(?:[ ]--?[\w-]{1,24}(?=[ =])|[ ][a-z]{2,14}(?=[ ])){0,4}[ =][\"']?(?P<value>[A-Za-z0-9_-]{24,80})(?![\w./:@-])", is_opaque),
        ("pass,pwd,pw", r"(?i)(?<=[-a-z])(?:pass|password|passwd|passphrase|pass-phrase|pwd|pw)[ =:][\"']?(?P<value>[^\s\"'-][^\s\"']{3,128})", lambda value: is_given(value, loose=True)),
    )
)  # fmt: skip
_HEX_PAIR = regex(r"(?:=|\.[a-z]{2,6}[\"']?[ :=]{1,3})[\"']?(?P<value>[0-9a-f]{8,64}:[0-9a-f]{8,64})(?![\w:])")
_JWK = regex(r"""(?:d|p|q|dp|dq|qi|k)\\{0,3}["']\s{0,3}:\s{0,3}\\{0,3}["'](?P<value>[\w-]{20,2048})""")


_CHOICE = AnchorGroups([anchors for anchors, *_ in _FORMS])


@tried_at(_CHOICE, BLOBS)
def in_labelled(piece: Text) -> Iterator[Span]:
    text = piece.text
    for number, positions in _CHOICE.positions(piece):
        _, before, pattern, check = _FORMS[number]
        for at in positions:
            match = pattern.match(text, at)
            if match and check(match["value"]) and (not before or before.search(text, max(0, at - 64), at)):
                yield Span(*match.span("value"), "password")
    for start, end in piece.blobs:
        if text.find(":", start, end) >= 0:
            pair = _HEX_PAIR.search(text, max(0, start - 4), end)
            if pair and all(mixed(part) for part in pair["value"].split(":")):
                yield Span(*pair.span("value"), "password")
    if "kty" in text:
        for quote in "\"'":
            for at in [at for name in "dpqk" for at in positions_of(text, quote + name)]:
                if (match := _JWK.match(text, at + 1)) and entropy(match["value"][:128]) >= 3.5:
                    yield Span(*match.span("value"), "password")


_ARGUMENT = regex(
    r"""\(\s{0,4}(?:[\w.]{1,24},[ ]?|["'][^"'\n]{1,40}["'],[ ]?)?b?["'`](?P<value>[A-Za-z0-9_-]{20,400}={0,2})["'`](?:\.\w{2,12}\(\))?\s{0,4}[,)]"""
)
_BEFORE_ARGUMENT = 56  # characters
_CONSTRUCTOR = regex(
    r"(?:(?i:client|api|sdk|service|connection|connector|init|initialize|configure|setup|authenticate|login|tracker|analytics|gateway|mailer"
    r"|geocoder|provider|auth|connect|identify|activate|fernet|hmac(?:\.new)?|sign|verify|cipher|crypt|secretbox|aes|stringsession|algoliasearch|mandrill|mailchimp|stripe|twilio|pusher|sentry|segment|mixpanel)|(?i:client|api|sdk|service|connection|connector|gateway|mailer|bot|provider|auth)(?:::|->|\.)(?:new|create|build|init|with_key|from_key)|\bnew[ ](?:\w+\.)?[A-Z]\w{1,30})$"
)
_NO_CLIENT = regex(
    r"(?i)(?:id|guid|hash|digest|sha\d*|md5|commit|checksum|etag|version|error|exception|regexp?|string|url|date|buffer|test|file|name|image|blob)$"
)


@tried_at(BLOBS)
def in_constructors(piece: Text) -> Iterator[Span]:
    """Find an opaque value as the first argument of a call to a service: `new Client("…")`, `sdk.init('…')`."""
    text = piece.text
    windows = [(max(0, start - _BEFORE_ARGUMENT), start) for start, _ in piece.blobs]
    for at in [first + at for first, start in windows for at in positions_of(text[first:start], "(")]:
        if match := _ARGUMENT.match(text, at):
            before = text[max(0, at - 48) : at]
            if (
                _CONSTRUCTOR.search(before)
                and not _NO_CLIENT.search(before)
                and is_opaque(match["value"])
                and not match["value"].startswith(("pk_live_", "pk_test_"))
            ):
                yield Span(*match.span("value"), "password")


_LITERAL = r"""(?:"[^"\n\\]{0,200}"|'[^'\n\\]{0,200}')"""
_CHAIN = regex(rf"""{_LITERAL}(?:\s{{0,12}}(?:\+|\.{{1,2}}|&|\|\||\\)?\s{{0,12}}[bfru]?{_LITERAL}){{1,12}}""")
_JOIN = regex(r"""["'](?<!["'].)\s{0,12}(?:\+|\.{1,2}|&|\|\||\\)?\s{0,12}[bfru]?["'](?!["'])""")
_PARTS = regex(_LITERAL)
_POLICY = regex(
    r"self|none|unsafe-[\w-]{4,24}|strict-dynamic|report-sample|sha\d{3}-[\w+/-]{40,90}={0,2}"
)  # content security policy of a page
_ASSIGNED_TO = regex(r"([A-Za-z_][\w.-]{1,60}+)[\"'\])]{0,2}(?:[ ]?:[ ]?\w{1,20})?[ ]{0,4}(?::=|=>|=|:)\s{0,12}\(?\s{0,12}[bfru]?$")


_SIGN_BEFORE = regex("[=:]")
_SHORTEST_KEY = 16  # characters

# What may be between two literals is left out before they are looked for.
_ALIKE, _BETWEEN = bytes.maketrans(b"'", b'"'), b" \t\r\n\x0b\x0c\x1c\x1d\x1e\x1f+.&|\\bfru"


@tried_at(QUOTES)
def in_chains(piece: Text) -> Iterator[Span]:
    """Find a secret that is split into joined literals; yields each literal."""
    text = piece.text
    quotes = piece.code_points.translate(_ALIKE, _BETWEEN).replace(b'"""', b"")
    if b'""' not in quotes or not _JOIN.search(text):
        return
    for match in _CHAIN.finditer(text):
        start = match.start()
        literals = [(start + part.start() + 1, part[0][1:-1]) for part in _PARTS.finditer(match[0])]
        joined = "".join(literal for _, literal in literals)
        sign = _SIGN_BEFORE.search(text, max(0, start - 28), start)
        named = _ASSIGNED_TO.search(text, max(0, start - 96), start) if sign else None
        key = FORMAT.search(joined) or ISSUED.search(joined) if max(map(len, joined.split()), default=0) >= _SHORTEST_KEY else None
        if not (named or key) or any(_POLICY.fullmatch(literal) for _, literal in literals):
            continue
        if (named and is_secret_under(named[1], joined, True)) or (
            key and len(key[0]) * 2 > len(joined) and (is_issued(key) if "issuer" in key.re.groupindex else is_key(key))
        ):
            for start, literal in literals:
                if literal:
                    yield Span(start, start + len(literal), "password")


# 64 bytes: a key pair of a wallet
_KEY_BYTES = regex(r"\[[ \n]{0,4}(?:\d{1,3},[ \n]{0,4}){63}\d{1,3}[ \n]{0,4}\]")


@tried_at(COMMAS, to_value_end=False)
def in_bytes(piece: Text) -> Iterator[Span]:
    """Find keys written as lists of bytes."""
    for match in _KEY_BYTES.finditer(piece.text):
        yield Span(*match.span(), "password")


_CODES = Anchors(" is your ")
_CODE_BEFORE = regex(r"(?<![\w.,:/-])(?:[A-Z]{1,2}-)?(?P<value>\d{3,4}[ -]\d{3,4}|\d{4,8})[\"'>)*]{0,2}$")
_CODE_NAMED = regex(r" is your (?:[\w'-]{1,20} ){0,4}(?:code|otp|pin|password|passcode)\b", re.IGNORECASE)


@tried_at(_CODES, to_value_end=False)
def in_codes(piece: Text) -> Iterator[Span]:
    """Find codes as a service sends them: `482913 is your verification code`."""
    for at in _CODES.positions(piece):
        start = max(0, at - 24)
        if _CODE_NAMED.match(piece.text, at) and (match := _CODE_BEFORE.search(piece.text[start:at])):
            yield Span(start + match.start("value"), start + match.end("value"), "password")


_INSERTS = Anchors("insert into ")
_INSERT = regex(
    r"(?i)insert[ ]into[ ][^\s(]{1,80}\s{0,4}\((?P<columns>[^()]{1,400})\)\s{0,4}values\s{0,4}(?P<rows>(?:\((?:[^()'\"]|'[^'\n]{0,200}'|\"[^\"\n]{0,200}\"){1,600}\)\s{0,4},?\s{0,4}){1,8})"
)
_CELL = regex(r"""\s*(?:'(?P<one>[^'\n]{0,200})'|"(?P<two>[^"\n]{0,200})"|(?P<other>[^,()'"]{0,80}))\s*(?P<end>[,)])""")


@tried_at(_INSERTS)
def in_inserts(piece: Text) -> Iterator[Span]:
    """Find values of columns whose names announce a secret: `INSERT INTO users (name, password) VALUES ('ann', '…')`."""
    for at in _INSERTS.positions(piece):
        match = _INSERT.match(piece.text, at)
        if match is None:
            continue
        names = [column.strip(" \t\n`\"'[]") for column in match["columns"].split(",")]
        place, cursor = 0, match.start("rows")
        while cursor < match.end("rows"):
            if piece.text[cursor] in "(, \t\r\n" and place == 0:
                cursor += 1
                continue
            cell = _CELL.match(piece.text, cursor, match.end("rows"))
            if cell is None:
                break
            group = "one" if cell["one"] is not None else "two"
            if cell[group] and place < len(names) and is_secret_under(names[place], cell[group], True):
                yield Span(*cell.span(group), "password")
            place, cursor = (0 if cell["end"] == ")" else place + 1), cell.end()
