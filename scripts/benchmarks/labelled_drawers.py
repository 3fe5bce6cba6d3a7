# ruff: noqa: E501 - expressions stay lines
"""Placeholders of `labelled_seen_second.txt`, in addition to `DRAWN`. No value is a live credential; each is assembled when drawn."""

import base64
import json
import random
import string
import uuid
from urllib.parse import quote

from scripts.benchmarks.labelled_drawn import (
    ALNUM,
    BASE32,
    BASE58,
    DRAWN,
    HEX,
    LOWER,
    UPPER,
    URL64,
    WORDS,
    Draw,
    base64_of,
    key,
    some,
)

_DIGITS = string.digits
_HEXUP = "0123456789ABCDEF"
_B64 = ALNUM + "+/"
_BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


# passwords as people and machines make them ------------------------------------------------------------------------------------------
def _human(draw: random.Random) -> str:
    """Word, number and sign, as many company policies require."""
    return (
        draw.choice(WORDS["nouns"]) + draw.choice(["", "#", "_", "-", "@"]) + str(draw.randrange(10, 2030)) + draw.choice("!?*.#!")
    )


def _leet(draw: random.Random) -> str:
    word = draw.choice(WORDS["plain"]) + draw.choice(WORDS["plain"])
    return word.translate(str.maketrans("aeos", "4305")) + str(draw.randrange(1, 99))


def _gen(draw: random.Random) -> str:
    """A password manager's password: mixed characters without quotes, brackets, blanks and dollar signs."""
    body = [draw.choice(ALNUM + "!#%*?@+-_.=~^") for _ in range(draw.randrange(13, 23))]
    return draw.choice(string.ascii_letters) + "".join(body) + draw.choice(_DIGITS) + draw.choice(string.ascii_lowercase)


def _safe(draw: random.Random) -> str:
    """Letters and digits only, which are valid everywhere."""
    return (
        draw.choice(string.ascii_letters)
        + some(ALNUM, draw.randrange(12, 22))(draw)
        + draw.choice(_DIGITS)
        + draw.choice(string.ascii_uppercase)
    )


def _short(draw: random.Random) -> str:
    return some(string.ascii_lowercase, 4)(draw) + some("23456789", 2)(draw) + some(string.ascii_lowercase, 3)(draw)


def _spaced(draw: random.Random) -> str:
    return " ".join(draw.sample(WORDS["plain"], draw.randrange(4, 6)))


def _hyphened(draw: random.Random) -> str:
    return "-".join(draw.sample(WORDS["plain"], 4))


def _apple(draw: random.Random) -> str:
    """The password that Apple's keychain proposes: three groups of six."""
    return "-".join(
        [
            some(string.ascii_lowercase, 6)(draw),
            some(string.ascii_lowercase, 5)(draw) + draw.choice(_DIGITS),
            draw.choice(string.ascii_uppercase) + some(string.ascii_lowercase, 5)(draw),
        ]
    )


def _apppw(draw: random.Random) -> str:
    """Google's app password: four groups of four letters."""
    return " ".join(some(string.ascii_lowercase, 4)(draw) for _ in range(4))


# composed values -----------------------------------------------------------------------------------------------------------------------
def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _pair(draw: random.Random) -> str:
    return f"{draw.choice(['ann', 'ci-bot', 'robot$pull', 'admin', 'bob@acme.io'])}:{_gen(draw)}"


def _rows(text: str, width: int = 64) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


def _block(kind: str, start: str, length: int) -> Draw:
    def block(draw: random.Random) -> str:
        body = start + base64.b64encode(draw.randbytes(length)).decode()
        return f"-----BEGIN {kind}-----\n{_rows(body)}\n-----END {kind}-----"

    return block


_pkcs8 = _block("PRIVATE " + "KEY", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", 900)
_rsakey = _block("RSA PRIVATE " + "KEY", "MIIEpAIBAAKCAQEA", 840)
_eckey = _block("EC PRIVATE " + "KEY", "MHcCAQEEI", 111)
_opensshkey = _block("OPENSSH PRIVATE " + "KEY", "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW", 210)


def _openvpn(draw: random.Random) -> str:
    return f"-----BEGIN OpenVPN Static key V1-----\n{_rows(some(HEX, 512)(draw), 32)}\n-----END OpenVPN Static key V1-----"


def _ssh2(draw: random.Random) -> str:
    body = "P2/56wAAA" + base64.b64encode(draw.randbytes(300)).decode()
    return f'---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: "2048-bit RSA"\n{_rows(body, 70)}\n---- END SSH2 ENCRYPTED PRIVATE KEY ----'


def _tunnel(draw: random.Random) -> str:
    return _b64(json.dumps({"a": some(HEX, 32)(draw), "t": DRAWN["uuid"](draw), "s": base64_of(32)(draw)}, separators=(",", ":")))


def _solana(draw: random.Random) -> str:
    return "[" + ",".join(str(draw.randrange(256)) for _ in range(64)) + "]"


def _laravel(draw: random.Random) -> str:
    inner = {"iv": base64_of(16)(draw), "value": base64_of(96)(draw), "mac": some(HEX, 64)(draw), "tag": ""}
    return quote(_b64(json.dumps(inner, separators=(",", ":"))), safe="")


def _part(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def _jwtlong(draw: random.Random) -> str:
    head = _part({"alg": "RS256", "typ": "JWT", "kid": some(HEX, 8)(draw)})
    until = draw.randrange(17 * 10**8, 2 * 10**9)
    body = _part({"iss": "https://login.acme.io/", "sub": DRAWN["uuid"](draw), "aud": "api", "exp": until, "scope": "read write"})
    return f"{head}.{body}.{some(URL64, 342)(draw)}"


def _itsdangerous(draw: random.Random) -> str:
    return f".eJw{some(URL64, 90)(draw)}.{some(URL64, 6)(draw)}.{some(URL64, 27)(draw)}"


def _luhn(prefixes: list[str], length: int) -> Draw:
    def number(draw: random.Random) -> str:
        body = draw.choice(prefixes)
        body += some(_DIGITS, length - 1 - len(body))(draw)
        total = sum(sum(divmod(int(digit) * (2 - index % 2), 10)) for index, digit in enumerate(reversed(body)))
        return body + str(-total % 10)

    return number


def _split(drawer: Draw, sizes: tuple[int, ...], sign: str) -> Draw:
    def grouped(draw: random.Random) -> str:
        text, groups = drawer(draw), []
        for size in sizes:
            groups.append(text[:size])
            text = text[size:]
        return sign.join(groups)

    return grouped


_visa, _mastercard, _amex, _diners = (
    _luhn(["4"], 16),
    _luhn(["51", "52", "53", "54", "55", "2221", "2720"], 16),
    _luhn(["34", "37"], 15),
    _luhn(["36", "38"], 14),
)


def _badluhn(length: int) -> Draw:
    """`length` digits with a wrong check digit, which are not a card number."""

    def number(draw: random.Random) -> str:
        good = _luhn(["9", "8", "7"], length)(draw)
        return good[:-1] + str((int(good[-1]) + draw.randrange(1, 10)) % 10)

    return number


def _helicone(draw: random.Random) -> str:
    return "sk-" + "helicone-" + "-".join(some(LOWER, 7)(draw) for _ in range(4))


def _uuid4(before: str) -> Draw:
    return lambda draw: before + str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _twice(draw: random.Random) -> str:
    return quote(quote(_human(draw) + "/&", safe=""), safe="")


# harmless text -------------------------------------------------------------------------------------------------------------------------
def _when(draw: random.Random) -> str:
    return f"20{draw.randrange(20, 28)}-{draw.randrange(1, 13):02}-{draw.randrange(1, 29):02}T{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}.{draw.randrange(1000):03}Z"


def _isbn(draw: random.Random) -> str:
    body = "978" + some(_DIGITS, 9)(draw)
    check = -sum(int(digit) * (1 + 2 * (index % 2)) for index, digit in enumerate(body)) % 10
    return f"{body[:3]}-{body[3]}-{body[4:7]}-{body[7:12]}-{check}"


def _textb64(draw: random.Random) -> str:
    return _b64(
        draw.choice(["Hello", "Dear all", "Please note"])
        + ", the meeting is moved to "
        + draw.choice(["Monday", "Friday"])
        + ", room "
        + str(draw.randrange(1, 400))
    )


def _octets(draw: random.Random) -> str:
    return ".".join(str(draw.randrange(1, 255)) for _ in range(4))


def _mac(draw: random.Random) -> str:
    return ":".join(some(HEX, 2)(draw) for _ in range(6))


def _fingerprint(draw: random.Random) -> str:
    return ":".join(some(_HEXUP, 2)(draw) for _ in range(32))


SECOND: dict[str, Draw] = {
    # passwords
    "human": _human, "leet": _leet, "gen": _gen, "safe": _safe, "short": _short, "spaced": _spaced, "hyphened": _hyphened, "apple": _apple, "apppw": _apppw,
    "pinyin": lambda draw: draw.choice(WORDS["pinyin"]) + draw.choice(["", "@", "_"]) + str(draw.randrange(100, 99999)),
    "russian": lambda draw: draw.choice(WORDS["russian"]) + str(draw.randrange(100, 2030)) + draw.choice("!?#"),
    "pin4": some(_DIGITS, 4), "base32long": some(BASE32, 52), "twice": _twice, "recovery": key((HEX, 5), "-", (HEX, 5)),
    # composed
    "pair64": lambda draw: _b64(_pair(draw)), "gen64": lambda draw: _b64(_gen(draw)), "human64": lambda draw: _b64(_human(draw) + "\n"),
    "pem64": lambda draw: _b64(_pkcs8(draw)), "openssh64": lambda draw: _b64(_opensshkey(draw)), "pkcs8": _pkcs8, "rsakey": _rsakey, "eckey": _eckey, "opensshkey": _opensshkey,
    "dsakey": _block("DSA PRIVATE " + "KEY", "MIIBuwIBAAKBgQ", 400), "openvpn": _openvpn, "ssh2": _ssh2, "jwtlong": _jwtlong, "flask": _itsdangerous, "laravel": _laravel, "solana": _solana,
    "seed12": lambda draw: " ".join(draw.sample(WORDS["bip39"], 12)), "seed24": lambda draw: " ".join(draw.sample(WORDS["bip39"], 24)),
    "visaspace": _split(_visa, (4, 4, 4, 4), " "), "visadash": _split(_visa, (4, 4, 4, 4), "-"), "visa": _visa, "master": _split(_mastercard, (4, 4, 4, 4), " "),
    "amex": _split(_amex, (4, 6, 5), " "), "amexdash": _split(_amex, (4, 6, 5), "-"), "diners": _split(_diners, (4, 6, 4), " "), "jcb": _luhn(["3528", "3589"], 16),
    # clouds
    "azstoragekey": key((ALNUM, 76), "+AS", "t", (ALNUM, 6), "=="), "azcosmos": key((ALNUM, 76), "AC", "Db", (ALNUM, 6), "=="), "azbus": key((ALNUM, 33), "+AS", "b", (ALNUM, 6), "="),
    "azfunc": key((URL64, 44), "Az", "Fu", (ALNUM, 6), "=="), "azacr": key((ALNUM, 42), "+AC", "R", (ALNUM, 6)), "azopenai": key((ALNUM, 52), "JQQJ99", (ALNUM, 13), "XJ3w3AAABACOG", (ALNUM, 4)),
    "azdevops": key((ALNUM, 52), "JQQJ99", (ALNUM, 18), "AZ", "DO", (ALNUM, 4)), "azdevold": some(string.ascii_lowercase + "234567", 52), "azconfig": key((ALNUM, 43), "="),
    "gcprefresh": key("1/", "/0", (URL64, 100)), "fcm": key("AA", "AA", (URL64, 7), ":APA", "91b", (URL64, 134)), "ibm": some(URL64, 44), "alisecret": some(ALNUM, 30),
    "tencent": key("AK", "ID", (ALNUM, 32)), "vultr": some(UPPER, 36), "upcloud": key("uc", "at_01", (UPPER, 24)), "spaces": some(_B64, 43), "akamai": key("ak", "ab-", (LOWER, 16), "-", (LOWER, 16)),
    "flyv1": key("Fly", "V1 fm", "2_", (_B64, 180)), "vercel": key("vc", "p_", (ALNUM, 56)), "cftunnel": _tunnel, "backblaze": key("K0", "05", (_B64, 27)), "ycsecret": key("Y", "C", (URL64, 38)),
    "awstemp": key("AS", "IA", (UPPER, 16)), "mws": _uuid4("amzn" + ".mws."), "sessmtp": key("B", (_B64, 43)), "hex512": some(HEX, 512), "cfsig": some(ALNUM + "-~", 342),
    # source, builds, packages
    "glcbt": key("glc", "bt-64_", (URL64, 20)), "glft": key("gl", "ft-", (URL64, 20)), "glagent": key("glag", "ent-", (URL64, 50)), "gloas": key("glo", "as-", (HEX, 64)), "glroutable": key("glp", "at-", (URL64, 27), ".0", "1.", (LOWER, 9)),
    "ghs": key("gh", "s_", (ALNUM, 36)), "gho": key("gh", "o_", (ALNUM, 36)), "jenkins": key("11", (HEX, 32)), "teamcity": key("eyJ0eXAiOiAiVEN", "WMiJ9.", (URL64, 36), ".", (URL64, 48)), "sonarp": key("sq", "p_", (HEX, 40)),
    "crates": key("ci", "o", (ALNUM, 32)), "ovsx": _uuid4("ovs" + "xat_"), "cloudsmith": some(HEX, 40), "dockersvc": key("dckr_", "oat_", (URL64, 32)), "travis": some(ALNUM, 22), "codecov": _uuid4(""), "snyk": _uuid4(""),
    # chat, hooks, mail
    "slackuser": key("xox", "p-", (_DIGITS, 12), "-", (_DIGITS, 12), "-", (_DIGITS, 13), "-", (HEX, 32)), "slackxoxc": key("xox", "c-", (_DIGITS, 12), "-", (_DIGITS, 12), "-", (_DIGITS, 13), "-", (HEX, 64)), "slackconfig": key("xo", "xe.xo", "xp-1-", (ALNUM, 160)),
    "mattermost": some(LOWER, 26), "matrix": key("sy", "t_", (ALNUM, 12), "_", (string.ascii_letters, 20), "_", (ALNUM, 6)), "linetoken": key((_B64, 171), "="), "zaptail": some(LOWER, 7), "pushover": key("a", (LOWER, 29)),
    "ntfy": key("tk", "_", (LOWER, 29)), "twitch": key("oau", "th:", (LOWER, 30)), "webex": lambda draw: some(URL64, 64)(draw) + "_P" + "F84_" + str(uuid.UUID(int=draw.getrandbits(128))), "gchattoken": key((URL64, 43), "%3D"),
    "mandrill": key("m", "d-", (URL64, 22)), "klaviyo": key("p", "k_", (HEX, 34)), "mailersend": key("ml", "sn.", (HEX, 64)), "vk": key("vk", "1.a.", (URL64, 180)), "discordsecret": some(URL64, 32), "slackflowtail": key((_DIGITS, 18), "/", (ALNUM, 24)),
    # payment
    "paypal": key("E", (URL64, 79)), "braintree": key("access_", "token$production$", (LOWER, 16), "$", (HEX, 32)), "adyen": key("AQ", "E", (ALNUM, 90), "-", (_B64, 43), "=-", (ALNUM, 16)), "mollie": key("li", "ve_", (ALNUM, 30)),
    "paystack": key("sk", "_live_", (HEX, 40)), "sq0atp": key("sq0", "atp-", (URL64, 22)), "gocardless": key("li", "ve_", (URL64, 40)), "paddle": key("pdl_", "live_apikey_01", (LOWER, 24), "_", (ALNUM, 22), "_", (ALNUM, 3)),
    "revolut": key("oa_", "prod_", (URL64, 43)), "xendit": key("xnd_", "production_", (ALNUM, 48)), "midtrans": key("Mid-", "server-", (URL64, 24)), "mercadopago": key("APP", "_USR-", (_DIGITS, 16), "-", (_DIGITS, 6), "-", (HEX, 32), "-", (_DIGITS, 9)),
    # monitoring
    "nrii": key("NR", "II-", (URL64, 32)), "sentryorg": key("sntr", "ys_eyJ", (ALNUM, 120), "_", (ALNUM, 43)), "glc": key("gl", "c_eyJ", (ALNUM, 110)), "honeycomb": key("hca", "ik_01", (LOWER, 56)), "axiom": _uuid4("xaa" + "t-"),
    "elasticapi": lambda draw: _b64(some(URL64, 20)(draw) + ":" + some(URL64, 22)(draw)), "upper20": key("E", (UPPER, 19)),
    # AI providers
    "antadmin": key("sk-", "ant-admin01-", (URL64, 93), "AA"), "antoat": key("sk-", "ant-oat01-", (URL64, 93), "AA"), "together": key("tg", "p_v1_", (URL64, 43)), "deepseek": key("s", "k-", (HEX, 32)), "fireworks": key("f", "w_", (ALNUM, 24)), "voyage": key("p", "a-", (URL64, 43)),
    "cerebras": key("cs", "k-", (LOWER, 48)), "llamacloud": key("ll", "x-", (ALNUM, 48)), "runpod": key("rp", "a_", (UPPER, 40), (LOWER, 6)), "anyscale": key("ese", "cret_", (LOWER, 40)), "helicone": _helicone, "e2b": key("e2", "b_", (HEX, 40)),
    "browserbase": key("bb", "_live_", (URL64, 27)), "zhipu": key((HEX, 32), ".", (ALNUM, 16)), "cursor": key("ke", "y_", (HEX, 64)), "daytona": key("dt", "n_", (HEX, 64)), "friendli": key("fl", "p_", (ALNUM, 45)),
    "openaiold": key("s", "k-", (ALNUM, 20), "T3Blbk", "FJ", (ALNUM, 20)), "moonshot": key("s", "k-", (ALNUM, 48)), "bfl": _uuid4(""),
    # databases
    "mdbsa": key("mdb_", "sa_sk_", (URL64, 40)), "influx": key((URL64, 86), "=="), "fauna": key("fn", "A", (URL64, 37)), "pscaletkn": key("pscale_", "tkn_", (URL64, 43)), "aiven": key("AV", "NS_", (URL64, 24)),
    "convex": key((_B64, 160), "="), "upstash": key("A", (ALNUM, 53), "="),
    # wallets, networks
    "ethkey": key("0", "x", (HEX, 64)), "nostr": key("nse", "c1", (_BECH32, 58)), "stellar": key("S", (BASE32, 55)), "bip38": key("6", "P", (BASE58, 56)), "solana58": some(BASE58, 88), "ngrok": key("2", (ALNUM, 26), "_", (ALNUM, 21)),
    "netbird": key("nb", "p_", (ALNUM, 36)), "cisco7": key("0", ("2345678", 1), (_HEXUP, 18)), "btcpriv": key("5", ("HJK", 1), (BASE58, 49)),
    # services
    "asana": key("2", "/", ("123456789", 16), "/", ("123456789", 16), ":", (HEX, 32)), "trello": key("AT", "TA", (HEX, 64), (_HEXUP, 8)), "clickup": key("p", "k_", (_DIGITS, 8), "_", (UPPER, 32)), "salesforce": key("00", "D", (ALNUM, 12), "!AQ", (ALNUM + "._", 96)),
    "dropbox": key("sl", ".u.", (URL64, 140)), "linkedin": key("WPL_", "AP1.", (ALNUM, 16), ".", (ALNUM, 6), "=="), "fbapp": key(("123456789", 15), "|", (URL64, 27)), "clerk": key("sk", "_live_", (ALNUM, 42)), "stytch": key("sec", "ret-live-", (URL64, 36)),
    "shopifyca": key("shp", "ca_", (HEX, 32)), "linearoauth": key("lin_", "oauth_", (HEX, 64)), "intercom": lambda draw: _b64("tok:" + some(HEX, 8)(draw) + "_" + some(HEX, 27)(draw) + ":1:0"), "plex": some(URL64, 20),
    "roblox": key("_|WARN", "ING:-DO-NOT-SHARE-THIS.--Sharing-this-will-allow-someone-to-log-in-as-you-and-to-steal-your-ROBUX-and-items.|_", (_HEXUP, 400)), "bwsession": base64_of(64), "apr1": key("$ap", "r1$", (ALNUM, 8), "$", (ALNUM, 22)), "sha512crypt": key("$", "6$", (ALNUM, 16), "$", (ALNUM, 86)),
    "wpsalt": key((ALNUM, 1), (ALNUM + "!@#%^*()-_ []{}~+=,.;:/?|", 62), (ALNUM, 1)), "aspcookie": key("CfD", "J8", (URL64, 300)), "connectsid": key("s%", "3A", (URL64, 32), ".", (ALNUM, 43)), "lower26": some(LOWER, 26), "hexup32": some(_HEXUP, 32), "hexup64": some(_HEXUP, 64), "hex48": some(HEX, 48),
    "url340": some(URL64, 342), "b128": base64_of(128), "alnum30": some(ALNUM, 30), "alnum22": some(ALNUM, 22), "alnum48": some(ALNUM, 48), "url32": some(URL64, 32), "hex6": some(HEX, 6), "hex7": some(HEX, 7), "gpgpass": _spaced, "tgsession": key("1", (URL64, 352)),
    "swarm": key((LOWER, 50), "-", (LOWER, 25)), "kubeadm": key((LOWER, 6), ".", (LOWER, 16)), "k3s": key("K1", "0", (HEX, 64), "::server:", (HEX, 32)),
    "plain64": lambda draw: _b64(f"\0ann@acme.io\0{_gen(draw)}"), "appleapp": lambda draw: "-".join(some(string.ascii_lowercase, 4)(draw) for _ in range(4)),
    # harmless
    "agepub": some(_BECH32, 58), "hexup40": some(_HEXUP, 40), "extension": some("abcdefghijklmnop", 32),
    "when": _when, "isbn": _isbn, "textb64": _textb64, "octets": _octets, "mac": _mac, "fingerprint": _fingerprint, "sha512": base64_of(64), "sha384": base64_of(48), "sha256": base64_of(32), "png": lambda draw: "iVBORw0KGgoAAAANSUhEUgAA" + base64_of(600)(draw),
    "gif": lambda draw: "R0lGODlh" + base64_of(240)(draw), "woff": lambda draw: "d09GMgABAAAAA" + base64_of(600)(draw), "svg64": lambda draw: _b64(f"<svg xmlns='http://www.w3.org/2000/svg' width='{draw.randrange(8, 99)}' height='{draw.randrange(8, 99)}'><path d='M{draw.randrange(99)} 0L9 {draw.randrange(99)}z'/></svg>"),
    "cert": _block("CERTIFICATE", "MIIDdzCCAl+gAwIBAgIE", 800), "csr": _block("CERTIFICATE REQUEST", "MIICijCCAXICAQAw", 620), "pubpem": _block("PUBLIC KEY", "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA", 270), "pgppub": _block("PGP PUBLIC KEY BLOCK", "mQINBF", 600), "pgpsig": _block("PGP SIGNATURE", "iQIzBAABCgAdFiEE", 500),
    "sshrsa": lambda draw: "AAAAB3NzaC1yc2EAAAADAQABAAABgQ" + base64_of(384)(draw)[:-2], "ssh25519": lambda draw: "AAAAC3NzaC1lZDI1NTE5AAAAI" + some(_B64, 43)(draw), "fpr": some(_B64, 43), "seconds": lambda draw: str(draw.randrange(16 * 10**8, 18 * 10**8)), "millis": lambda draw: str(draw.randrange(16 * 10**11, 18 * 10**11)),
    "ulid": key("01", ("0123456789ABCDEFGHJKMNPQRSTVWXYZ", 24)), "semver": lambda draw: f"{draw.randrange(20)}.{draw.randrange(30)}.{draw.randrange(12)}", "phone": lambda draw: f"+49 30 {draw.randrange(10**5, 10**6)}-{draw.randrange(10, 99)}", "port": lambda draw: str(draw.randrange(1025, 65000)), "ms": lambda draw: f"{draw.randrange(1, 900)}.{draw.randrange(1000):03}",
    "notcard16": _badluhn(16), "notcard15": _badluhn(15), "notcard14": _badluhn(14), "notcard18": _badluhn(18), "btc": key("bc1", "q", (_BECH32, 38)), "ethaddr": key("0", "x", (HEX, 40)), "onion": key((string.ascii_lowercase + "234567", 56), ".onion"), "ipfs": key("Qm", (BASE58, 44)), "vid": some(URL64, 11), "gaid": key("G-", (UPPER, 10)),
    "utmgclid": key("Cj0KCQ", (URL64, 84), "wcB"), "percent": lambda draw: f"{draw.randrange(100)}.{draw.randrange(10)}%", "vin": key("WVWZZZ1", ("ABCDEFGHJKLMNPRSTUVWXYZ0123456789", 10)), "doi": lambda draw: f"10.{draw.randrange(1000, 9999)}/s{draw.randrange(10**4, 10**5)}-0{draw.randrange(20, 27)}-{draw.randrange(10**4, 10**5)}-{draw.randrange(10)}",
}  # fmt: skip
SECOND = {name: drawer for name, drawer in SECOND.items() if name not in DRAWN}  # existing names keep their drawers
