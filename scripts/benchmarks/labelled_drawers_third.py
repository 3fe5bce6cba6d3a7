# ruff: noqa: E501 - expressions stay lines
"""Placeholders of `labelled_fresh.txt`, in addition to `DRAWN`. No value is a live credential; each is assembled when drawn."""

import base64
import json
import random
import string
import textwrap
import uuid
from collections.abc import Callable
from urllib.parse import quote

from scripts.benchmarks.labelled_drawn import WORDS, Draw, base64_of, key, some

_D = string.digits
_D9 = "123456789"
_L = string.ascii_lowercase
_U = string.ascii_uppercase
_LD = _L + _D
_UD = _U + _D
_A = string.ascii_letters + _D
_X = "0123456789abcdef"
_XU = "0123456789ABCDEF"
_W = _A + "-_"
_B32 = _U + "234567"
_B32L = _L + "234567"
_B64 = _A + "+/"
_BECH = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_NIX = "0123456789abcdfghijklmnpqrsvwxyz"
_CROCK = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def _human(draw: random.Random) -> str:
    name = draw.choice(WORDS["names"])
    kind = draw.randrange(4)
    if kind == 0:
        return f"{name}{draw.randrange(1975, 2026)}{draw.choice('!*#')}"
    if kind == 1:
        return f"{name.replace('o', '0').replace('a', '@').replace('e', '3')}{draw.choice('!_*')}{draw.randrange(10, 999)}"
    if kind == 2:
        return f"{draw.choice('!*_')}{name}{draw.choice('-_.')}{draw.choice(WORDS['names']).lower()}{draw.randrange(10, 99)}"
    return f"{name.lower()}{draw.choice(WORDS['names'])}{draw.randrange(100, 9999)}"


def _gen(length: int, marks: str = "!@%^*_+=-?~") -> Draw:
    def drawn(draw: random.Random) -> str:
        letters = [draw.choice(_L), draw.choice(_U), draw.choice(_D), draw.choice(marks)]
        letters += [draw.choice(_A + marks) for _ in range(length - 5)]
        draw.shuffle(letters)
        return draw.choice(_A) + "".join(letters)

    return drawn


def _dice(mark: str, count: int = 4) -> Draw:
    return lambda draw: mark.join(draw.sample(WORDS["dice"], count))


def _uuid(draw: random.Random) -> str:
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _jwt_of(payload: Callable[[random.Random], dict[str, object]]) -> Draw:
    def drawn(draw: random.Random) -> str:
        head = _b64url(json.dumps({"alg": draw.choice(["HS256", "RS256"]), "typ": "JWT"}, separators=(",", ":")).encode())
        size = 32 if len(head) < 37 else 256
        return f"{head}.{_b64url(json.dumps(payload(draw), separators=(',', ':')).encode())}.{_b64url(draw.randbytes(size))}"

    return drawn


def _pem(label: str, size: int, head: bytes = b"") -> Draw:
    def drawn(draw: random.Random) -> str:
        body = base64.b64encode(head + draw.randbytes(size)).decode()
        width = 70 if "OPENSSH" in label else 64
        return "\n".join([f"-----BEGIN {label}-----", *textwrap.wrap(body, width), f"-----END {label}-----"])

    return drawn


_RSA = _pem("RSA" + " PRIVATE KEY", 1190, b"0\x82\x04\xa4\x02\x01\x00\x02\x82\x01\x01\x00")
_EC = _pem("EC" + " PRIVATE KEY", 103, b"0w\x02\x01\x01\x04 ")
_PK8 = _pem("PRIVATE" + " KEY", 1190, b"0\x82\x04\xbd\x02\x01\x000\r\x06\t*\x86H\x86\xf7\r\x01\x01\x01\x05\x00")
_ENC = _pem("ENCRYPTED" + " PRIVATE KEY", 1200, b"0\x82\x05\x0e0@\x06\t*\x86H\x86\xf7\r\x01\x05\r")
_SSH = _pem("OPENSSH" + " PRIVATE KEY", 360, b"openssh-key-v1\x00\x00\x00\x00\x04none\x00\x00\x00\x04none\x00")
_CERT = _pem("CERTIFICATE", 760, b"0\x82\x03\xa5")
_PUB = _pem("PUBLIC KEY", 270, b'0\x82\x01"0\r\x06\t*\x86H\x86\xf7\r\x01\x01\x01\x05\x00\x03\x82\x01\x0f\x00')
_CSR = _pem("CERTIFICATE REQUEST", 600, b"0\x82\x02")


def _ppk(draw: random.Random) -> str:
    body = "\n".join(textwrap.wrap(base64.b64encode(draw.randbytes(180)).decode(), 64))
    return body


def _ovpn(draw: random.Random) -> str:
    rows = "\n".join(some(_X, 32)(draw) for _ in range(16))
    return f"-----BEGIN OpenVPN Static key V1-----\n{rows}\n-----END OpenVPN Static key V1-----"


def _plain64(draw: random.Random) -> str:
    text = draw.choice(
        [
            "The quick brown fox jumps over the lazy dog and goes home.",
            "Hello from the build server, everything is green today.",
            '{"page":3,"limit":50,"sort":"created_at"}',
            "Lorem ipsum dolor sit amet, consectetur adipiscing elit.",
            '{"after":"2025-03-01T00:00:00Z","id":91822}',
        ]
    )
    return base64.b64encode(text.encode()).decode()


def _png(draw: random.Random) -> str:
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x10\x08\x06\x00\x00\x00\x1f\xf3\xffa"
        + draw.randbytes(140)
    ).decode()


def _uri_pw(draw: random.Random) -> str:
    return quote(_gen(15, "@!%^*+=#/")(draw), safe="")


def _grafana_old(draw: random.Random) -> str:
    body = {"k": some(_A, 32)(draw), "n": "ci-deploy", "id": 1}
    return base64.b64encode(json.dumps(body, separators=(",", ":")).encode()).decode()


def _grafana_cloud(draw: random.Random) -> str:
    body = {"o": "612345", "n": "alloy-prod", "k": some(_A, 24)(draw), "m": {"r": "prod-eu-west-2"}}
    return "gl" + "c_" + base64.b64encode(json.dumps(body, separators=(",", ":")).encode()).decode()


def _docker_auth(draw: random.Random) -> str:
    return base64.b64encode(("ci-bot:" + "dckr_" + "pat_" + some(_W, 27)(draw)).encode()).decode()


def _npm_auth(draw: random.Random) -> str:
    return base64.b64encode(("publisher:" + _gen(14)(draw)).encode()).decode()


def _elastic(draw: random.Random) -> str:
    return base64.b64encode((some(_W, 20)(draw) + ":" + some(_W, 22)(draw)).encode()).decode()


def _key_data(draw: random.Random) -> str:
    return base64.b64encode(_RSA(draw).encode()).decode()


def _cert_data(draw: random.Random) -> str:
    return base64.b64encode(_CERT(draw).encode()).decode()


def _service_b64(draw: random.Random) -> str:
    body = {
        "type": "service_account",
        "project_id": "acme-prod",
        "private_key_id": some(_X, 40)(draw),
        "private_key": _PK8(draw) + "\n",
    }
    return base64.b64encode(json.dumps(body).encode()).decode()


def _entities(drawn: Draw) -> Draw:
    return lambda draw: "".join(f"&#{ord(letter)};" for letter in drawn(draw))


def _percent_all(drawn: Draw) -> Draw:
    return lambda draw: "".join(f"%{ord(letter):02X}" for letter in drawn(draw))


def _hexesc(drawn: Draw) -> Draw:
    return lambda draw: "".join(f"\\x{ord(letter):02x}" for letter in drawn(draw))


def _twice(drawn: Draw) -> Draw:
    return lambda draw: quote(quote(drawn(draw), safe=""), safe="")


def _escaped(drawn: Draw) -> Draw:
    """Write line breaks as backslash and n."""
    return lambda draw: drawn(draw).replace("\n", "\\n") + "\\n"


def _escaped2(drawn: Draw) -> Draw:
    return lambda draw: drawn(draw).replace("\n", "\\\\n") + "\\\\n"


def _uni(drawn: Draw) -> Draw:
    return lambda draw: "".join(f"\\u{ord(letter):04x}" if letter in "_-=/+" else letter for letter in drawn(draw))


def _salesforce(draw: random.Random) -> str:
    return "00D" + some(_A, 12)(draw) + "!AQE" + some(_A + "._", 92)(draw)


_ghp = key("gh", "p_", (_A, 36))
_aws_secret = some(_B64, 40)
_ssha = key("SHA", "256:", (_B64, 43))

THIRD: dict[str, Draw] = {
    # passwords as people choose or generate them
    "human": _human, "gen": _gen(16), "gen24": _gen(24), "genplain": _gen(18, "_-"), "dice": _dice("-", 5), "dicespace": _dice(" ", 5), "uripw": _uri_pw,
    "wpass": some(_L + _D, 12), "otp6": some(_D, 6), "pin4": some(_D9, 4), "recovery": key((_LD, 5), "-", (_LD, 5)),
    # clouds
    "akid": key("AK", "IA", (_B32, 16)), "asia": key("AS", "IA", (_B32, 16)), "awskey": _aws_secret, "awssess": lambda draw: "IQoJb3Jp" + "Z2luX2Vj" + base64_of(390)(draw), "awsmws": lambda draw: "amzn." + "mws." + _uuid(draw),
    "bedrockshort": key("bedrock-api", "-key-YmVkcm9jay5hbWF6b25hd3MuY29t", (_B64, 220)), "azstore": lambda draw: some(_B64, 76)(draw) + "+ASt" + some(_B64, 6)(draw) + "==", "azbus": lambda draw: some(_B64, 33)(draw) + "+ASb" + some(_B64, 6)(draw) + "=",
    "azcosmos": lambda draw: some(_B64, 76)(draw) + "ACDb" + some(_B64, 6)(draw) + "==", "azfunc": lambda draw: some(_W, 44)(draw) + "AzFu" + some(_W, 6)(draw) + "==", "azdevops": some(_B32L, 52), "azdonew": lambda draw: some(_A, 52)(draw) + "JQQJ99" + some(_UD, 14)(draw) + "AZDO" + some(_A, 4)(draw),
    "azsearch": lambda draw: some(_A, 42)(draw) + "AzSe" + some(_A, 6)(draw), "azacr": lambda draw: some(_B64, 42)(draw) + "+ACR" + some(_B64, 6)(draw), "azconf": base64_of(32), "azopenai": lambda draw: some(_A, 52)(draw) + "JQQJ99" + some(_UD, 14)(draw) + "ACOG" + some(_A, 4)(draw),
    "gcprefresh": key("1//", "0g", (_W, 100)), "gcpkey": key("AI", "za", (_W, 35)), "goocspx": key("GOC", "SPX-", (_W, 28)), "hetzner": some(_A, 64), "linode": some(_X, 64), "vultr": some(_UD, 36), "cftoken": some(_W, 40), "cfglobal": some(_X, 37),
    "dospaces": some(_B64, 43), "oci": _pem("PRIVATE" + " KEY", 1200), "alisecret": some(_A, 30), "tencentid": key("AK", "ID", (_A, 32)), "tencentkey": some(_A, 32), "ibmcloud": some(_W, 44), "scaleway": _uuid, "akamai": lambda draw: "akab-" + some(_LD, 16)(draw) + "-" + some(_LD, 16)(draw), "b2key": key("K0", "04", (_B64, 27)), "wasabi": some(_A, 40),
    # source hosts and package registries
    "ghpclassic": _ghp, "gho": key("gh", "o_", (_A, 36)), "ghs": key("gh", "s_", (_A, 36)), "ghfine": key("github", "_pat_", (_A, 22), "_", (_A, 59)), "glpat": key("gl", "pat-", (_W, 20)), "glroute": key("gl", "pat-", (_W, 27), ".01.", (_LD, 9)), "glci": key("glc", "bt-64_", (_W, 20)), "glagent": key("glag", "ent-", (_W, 50)), "glfeed": key("gl", "ft-", (_W, 20)), "glscim": key("glso", "at-", (_W, 20)), "gloas": key("glo", "as-", (_X, 64)), "glsession": some(_X, 32),
    "npmtok": key("np", "m_", (_A, 36)), "cio": key("ci", "o", (_A, 32)), "packagist": key("packa", "gist_out_", (_X, 68)), "dckroat": key("dckr_", "oat_", (_W, 32)), "gitea": some(_X, 40), "gems": key("ruby", "gems_", (_X, 48)), "hexpm": some(_X, 32), "bbapp": key("ATB", "B", (_A, 32)), "jfrog": key("AK", "Cp", (_A, 69)),
    # AI
    "oaiproj": key("sk-", "proj-", (_W, 74), "T3Blbk", "FJ", (_W, 74)), "oaiold": key("sk", "-", (_A, 20), "T3Blbk", "FJ", (_A, 20)), "antapi": key("sk-ant", "-api03-", (_W, 93), "AA"), "antadmin": key("sk-ant", "-admin01-", (_W, 93), "AA"), "antoat": key("sk-ant", "-oat01-", (_W, 93), "AA"), "deepseek": key("sk", "-", (_X, 32)), "hftok": key("hf", "_", (string.ascii_letters, 34)), "hforg": key("api", "_org_", (string.ascii_letters, 34)), "cohere": some(_A, 40), "mistral": some(_A, 32), "fireworks": key("fw", "_", (_A, 24)), "together": some(_X, 64), "cerebras": key("cs", "k-", (_LD, 48)), "voyage": key("pa", "-", (_W, 43)),
    "runpod": key("rp", "a_", (_UD, 40), (_LD, 6)), "wandb": some(_X, 40), "assembly": some(_X, 32), "deepgram": some(_X, 40), "cursor": key("ke", "y_", (_X, 64)), "serper": some(_X, 40), "groqkey": key("gs", "k_", (_A, 20), "WGdyb3FY", (_A, 24)), "kaggle": some(_X, 32), "comet": some(_A, 25), "exa": _uuid, "oroute": key("sk-or", "-v1-", (_X, 64)),
    # chat, mail, social
    "xoxb": key("xox", "b-", (_D9, 12), "-", (_D9, 13), "-", (_A, 24)), "xoxp": key("xox", "p-", (_D9, 12), "-", (_D9, 12), "-", (_D9, 13), "-", (_X, 32)), "xoxc": key("xox", "c-", (_D9, 12), "-", (_D9, 12), "-", (_D9, 13), "-", (_X, 64)), "slacktrigger": key("https://hooks.sl", "ack.com/triggers/T", (_UD, 10), "/", (_D9, 13), "/", (_X, 32)), "tgbot": key((_D9, 10), ":AA", (_W, 33)), "discordbot": key("OT", (_A, 24), ".", "G", (_W, 5), ".", (_W, 38)), "mfa": key("mf", "a.", (_W, 84)), "twitch": some(_LD, 30), "spotify": some(_X, 32), "dropbox": key("s", "l.u.", (_W, 140)), "intercom": lambda draw: base64.b64encode(("tok:" + some(_X, 8)(draw) + "_" + some(_X, 4)(draw) + "_" + some(_X, 4)(draw) + "_" + some(_X, 20)(draw) + ":1:0").encode()).decode(), "zendesk": some(_A, 40), "igtoken": key("IG", "QVJ", (_A, 160)), "linkedin": key("WPL_A", "P1.", (_A, 16), ".", (_A, 6), "=="), "mandrill": key("m", "d-", (_W, 22)), "postmark": _uuid, "sparkpost": some(_X, 40), "klaviyo": key("p", "k_", (_X, 34)), "mailjet": some(_X, 32), "sgkey": key("S", "G.", (_W, 22), ".", (_W, 43)), "mgkey": key("ke", "y-", (_X, 32)), "acsid": key("A", "C", (_X, 32)), "twauth": some(_X, 32), "vonage": some(_A, 16), "webex": key((_A, 64), "_P0A1_", (_X, 8), "-", (_X, 4), "-", (_X, 4), "-", (_X, 4), "-", (_X, 12)), "mattermost": some(_LD, 26), "matrix": key("sy", "t_Ym90_", (string.ascii_letters, 20), "_", (_A, 6)), "pushover": some(_LD, 30), "ntfy": key("t", "k_", (_LD, 29)),
    # money
    "sklive": key("sk", "_live_51", (_A, 97)), "rklive": key("rk", "_live_51", (_A, 97)), "whsec": key("wh", "sec_", (_A, 32)), "braintree": key("access_", "token$production$", (_LD, 16), "$", (_X, 32)), "paypalsecret": key("E", (_W, 79)), "razorpay": some(_A, 24), "paystack": key("sk", "_live_", (_X, 40)), "xendit": key("xnd_pro", "duction_", (_A, 60)), "adyen": key("AQE", (_B64, 120), "-", (_B64, 43), "=-", (_A, 16)), "gocard": key("li", "ve_", (_W, 40)), "lob": key("li", "ve_", (_X, 35)), "coinbase": some(_A, 32), "binance": some(_A, 64), "sqatp": key("sq0", "atp-", (_W, 22)), "shpca": key("shp", "ca_", (_X, 32)), "shppa": key("shp", "pa_", (_X, 32)), "mollie": key("li", "ve_", (_A, 30)), "checkoutcom": key("sk", "_", (_LD, 26)), "ethkey": key("0", "x", (_X, 64)),
    # monitoring, work tools
    "ddapi": some(_X, 32), "ddapp": some(_X, 40), "hcb": key("hca", "ik_01", (_LD, 56)), "glc": _grafana_cloud, "glold": _grafana_old, "sntrys": lambda draw: "sntr" + "ys_" + base64.b64encode(json.dumps({"iat": 1700000000.5, "url": "https://sentry.io", "org": "acme"}).encode()).decode() + "_" + some(_B64, 43)(draw), "pagerduty": key("u", "+", (_W, 18)), "opsgenie": _uuid, "hec": _uuid, "nrii": key("NR", "II-", (_W, 32)), "rollbar": some(_X, 32), "asana": key("2/12", (_D9, 14), "/12", (_D9, 14), ":", (_X, 32)), "clickup": key("p", "k_", (_D9, 8), "_", (_UD, 32)), "trello": key("ATT", "A", (_A, 64), (_XU, 8)), "jira": key("ATA", "TT3xFfGF0", (_W, 174), "=", (_XU, 8)), "segment": key("sg", "p_", (_A, 64)), "algolia": some(_X, 32), "snyk": _uuid, "codecov": _uuid, "hubpat": lambda draw: "pat-eu1-" + _uuid(draw), "sfsession": _salesforce, "zoomsecret": some(_A, 32), "contentfultok": some(_W, 43), "sanity": key("sk", (_A, 178)), "sqp": key("sq", "p_", (_X, 40)), "beamer": key("b", "_", (_W, 44)), "linearkey": key("lin_", "api_", (_A, 40)), "notionkey": key("nt", "n_", (_D, 11), (_A, 35)), "lichess": key("li", "p_", (_A, 20)), "zuplo": key("zp", "ka_", (_LD, 32), "_", (_X, 8)), "scalingo": key("tk", "-us-", (_W, 48)), "oktatok": key("0", "0", (_W, 40)), "auth0": some(_W, 64), "keycloak": some(_A, 32), "n8n": _jwt_of(lambda draw: {"sub": _uuid(draw), "iss": "n8n", "aud": "public-api", "iat": 1740000000}),
    # infrastructure
    "hvs": key("hv", "s.CAES", (_W, 91)), "hvsshort": key("hv", "s.", (_A, 24)), "tfc": key((_A, 14), ".atl", "asv1.", (_W, 67)), "dopst": key("dp", ".st.prd.", (_A, 43)), "infisical": key("st", ".", (_X, 24), ".", (_X, 32), ".", (_X, 32)), "ngrok": key("2", (_A, 26), "_", (_A, 21)), "tskey": key("tskey-", "api-k", (_A, 11), "CNTRL-", (_A, 32)), "k8sboot": key((_LD, 6), ".", (_LD, 16)), "flyv1": key("Fly", "V1 fm2_", (_A, 200), "=="), "rndkey": key("rn", "d_", (_A, 28)), "verblob": key("vercel_", "blob_rw_", (_A, 16), "_", (_A, 30)), "vercel": some(_A, 24), "railway": _uuid, "herokuuuid": _uuid, "pscaletkn": key("pscale_", "tkn_", (_W, 43)), "aiven": key("AV", "NS_", (_W, 19)), "dbtc": key("db", "tc_", (_A, 40)), "ccloud": some(_B64, 64), "snow": _gen(18, "!*_-"), "dapi": key("da", "pi", (_X, 32), "-2"), "elastic": _elastic, "fastly": some(_W, 32), "puppet": some(_A, 32), "wgkey": base64_of(32), "ageid": key("AGE-", "SECRET-KEY-1", (_BECH.upper(), 58)), "ovpnkey": _ovpn, "dockerauth": _docker_auth, "npmauth": _npm_auth, "keydata": _key_data, "saB64": _service_b64, "ppk": _ppk, "fernet": lambda draw: base64.urlsafe_b64encode(draw.randbytes(32)).decode(), "laravel": lambda draw: "base" + "64:" + base64_of(32)(draw), "djangokey": lambda draw: "django-" + "insecure-" + some(_LD + "!@#$%^&*(-_=+)", 50)(draw), "wpsalt": some(_A + "!@#$%^&*()-_[]{}|~+=,.;:?", 64), "totp": some(_B32, 32), "totp16": some(_B32, 16), "supaservice": _jwt_of(lambda draw: {"iss": "supabase", "ref": some(_L, 20)(draw), "role": "service_role", "iat": 1700000000, "exp": 2015000000}), "userjwt": _jwt_of(lambda draw: {"sub": str(draw.randrange(10**6)), "name": "Ada", "iat": 1710000000, "exp": 1810000000}), "k8sjwt": _jwt_of(lambda draw: {"iss": "kubernetes/serviceaccount", "kubernetes.io/serviceaccount/namespace": "ci", "sub": "system:serviceaccount:ci:deployer", "uid": _uuid(draw)}),
    "session": some(_W, 43), "connectsid": lambda draw: "s%3A" + some(_W, 32)(draw) + "." + quote(base64_of(32)(draw), safe=""), "laravelsess": lambda draw: quote(base64.b64encode(json.dumps({"iv": base64_of(16)(draw), "value": base64_of(96)(draw), "mac": some(_X, 64)(draw), "tag": ""}).encode()).decode(), safe=""), "phpsess": some(_LD, 26), "jsession": some(_XU, 32), "xsalted": some(_X, 48),
    # keys in PEM, and what holds them
    "rsa": _RSA, "ec": _EC, "pk8": _PK8, "encpk": _ENC, "ssh": _SSH, "rsaesc": _escaped(_RSA), "pk8esc": _escaped(_PK8), "pk8esc2": _escaped2(_PK8), "sshesc": _escaped(_SSH), "jwkd": some(_W, 43), "jwkrsa": some(_W, 342), "rsaflat": lambda draw: _RSA(draw).replace("\n", " "), "rsabody": lambda draw: "\n".join(_RSA(draw).splitlines()[1:9]),
    # escapes
    "ghpents": _entities(_ghp), "pwents": _entities(_gen(14)), "ghppercent": _percent_all(_ghp), "pwpercent2": _twice(_gen(14, "@!/+=")), "awshex": _hexesc(_aws_secret), "glpatuni": _uni(key("gl", "pat-", (_W, 20))),
    # not secrets
    "sri512": lambda draw: "sha512-" + base64_of(64)(draw), "sri256": lambda draw: "sha256-" + base64_of(32)(draw), "sri1": lambda draw: "sha1-" + base64_of(20)(draw), "gosum": lambda draw: "h1:" + base64_of(32)(draw), "md5b64": base64_of(16), "sshfp": _ssha, "sshed": key("AAAAC3NzaC1lZDI1NTE5AAAAI", (_B64, 43)), "sshrsa": key("AAAAB3NzaC1yc2EAAAADAQABAAABAQ", (_B64, 342)), "sshecdsa": key("AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABB", (_B64, 87), "="), "cert": _CERT, "pubpem": _PUB, "csr": _CSR, "certdata": _cert_data, "plain64": _plain64, "png64": _png, "ulid": key("01", (_CROCK, 24)), "ksuid": key("2", (_A, 26)), "nanoid": some(_W, 21), "podhash": key(("bcdf456789", 10), "-", ("bcdfghjklmnpqrstvwxz2456789", 5)), "xray": key("1-6", (_X, 7), "-", (_X, 24)), "trace": key("00-", (_X, 32), "-", (_X, 16), "-01"), "eth": key("0x", (_X, 40)), "txhash": key("0x", (_X, 64)), "btc": key("bc1q", (_BECH, 38)), "cidv0": key("Qm", ("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", 44)), "cidv1": key("bafybei", (_B32L, 52)), "nix32": some(_NIX, 32), "nix52": some(_NIX, 52), "ami": key("ami-0", (_X, 16)), "vpc": key("0", (_X, 16)), "acct": some(_D9, 12), "cfdist": key("E", (_UD, 13)), "amzid2": lambda draw: base64_of(56)(draw), "amzreq": some(_UD, 16), "cfray": key((_X, 16), "-FRA"), "cus": key("cus_", (_A, 14)), "pint": key("pi_3", (_A, 23)), "evt": key("evt_1", (_A, 23)), "reqid": key("req_", (_A, 14)), "price": key("price_1", (_A, 23)), "pklive": key("pk", "_live_51", (_A, 97)), "gaid": key("G-", (_UD, 10)), "gtm": key("GTM-", (_UD, 7)), "slackchan": key("C0", (_UD, 9)), "slackuser": key("U0", (_UD, 9)), "yt": some(_W, 11), "gdoc": some(_W, 44), "chatcmpl": key("chatcmpl-", (_A, 29)), "msgid": key("msg_01", (_A, 22)), "toolu": key("toolu_01", (_A, 22)), "callid": key("call_", (_A, 24)), "respid": key("resp_", (_X, 48)), "asst": key("asst_", (_A, 24)), "fileid": key("file-", (_A, 22)), "orgid": key("org-", (_A, 24)), "fpid": key("fp_", (_X, 10)), "sig64": base64_of(240), "gclient": key((_D9, 12), "-", (_LD, 32), ".apps.googleusercontent.com"), "ghapp": key("Iv1.", (_X, 16)), "mangled": lambda draw: f"_ZN{draw.randrange(4, 9)}tokio7runtime4task7harness20Harness$LT$T$C$S$GT$4poll17h{some(_X, 16)(draw)}E", "chunk": some(_X, 8), "vite": some(_W, 8), "buildid": some(_X, 40), "isodate": lambda draw: f"2025-{draw.randrange(1, 13):02d}-{draw.randrange(1, 29):02d}T{draw.randrange(24):02d}:{draw.randrange(60):02d}:{draw.randrange(60):02d}Z", "epoch": lambda draw: str(draw.randrange(1_600_000_000, 1_790_000_000)), "epochms": lambda draw: str(draw.randrange(1_600_000_000_000, 1_790_000_000_000)), "num": lambda draw: str(draw.randrange(100, 99999)), "semver": lambda draw: f"{draw.randrange(9)}.{draw.randrange(30)}.{draw.randrange(20)}", "port": lambda draw: str(draw.randrange(1024, 65000)), "jiraid": lambda draw: f"SEC-{draw.randrange(100, 9999)}", "isbn": lambda draw: f"978-3-{some(_D9, 4)(draw)}-{some(_D9, 4)(draw)}-{draw.randrange(10)}", "mongoid": some(_X, 24), "etag": some(_X, 32), "winsid": lambda draw: f"S-1-5-21-{draw.randrange(10**9)}-{draw.randrange(10**9)}-{draw.randrange(10**9)}-1001", "guidbrace": lambda draw: "{" + _uuid(draw).upper() + "}", "uuid7": lambda draw: "0195" + _uuid(draw)[4:14] + "7" + _uuid(draw)[15:], "pypifile": lambda draw: f"{some(_X, 2)(draw)}/{some(_X, 2)(draw)}/{some(_X, 60)(draw)}", "pgpsig": lambda draw: "-----BEGIN PGP SIGNATURE-----\n\n" + "\n".join(textwrap.wrap(base64.b64encode(draw.randbytes(230)).decode(), 64)) + "\n=" + some(_A, 4)(draw) + "\n-----END PGP SIGNATURE-----", "pgpfpr": lambda draw: " ".join(some(_XU, 4)(draw) for _ in range(10)), "wgpub": base64_of(32), "agepub": key("age1", (_BECH, 58)), "minisig": key("RW", (_B64, 54)), "dkimpub": key("MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCB", (_B64, 184)), "cosign": some(_X, 64), "sealed": key("Ag", (_B64, 340)), "sopsenc": base64_of(28), "ansvault": lambda draw: "\n".join("          " + some(_D, 80)(draw) for _ in range(5)), "vapidpub": key("B", (_W, 86)), "jwkn": some(_W, 342), "jwkx": some(_W, 43), "kid": some(_W, 43),
}  # fmt: skip
THIRD |= {
    "plainjwtlike": lambda draw: base64.b64encode(json.dumps({"a": some(_X, 32)(draw), "t": _uuid(draw), "s": base64_of(32)(draw)}, separators=(",", ":")).encode()).decode(),
    "slacktail": lambda draw: "T" + some(_UD, 8)(draw) + "\\/B" + some(_UD, 10)(draw) + "\\/" + some(_A, 24)(draw),
    "gen_basic": lambda draw: base64.b64encode(("svc-ci:" + _gen(20)(draw)).encode()).decode(),
    "ecrpw": lambda draw: base64.b64encode(json.dumps({"payload": base64_of(400)(draw), "datakey": "AQEBAHh" + some(_A, 120)(draw), "version": "2", "type": "DATA_KEY", "expiration": 1760000000}, separators=(",", ":")).encode()).decode(),
}  # fmt: skip
THIRD |= {
    "gcpkey": key("AI", "zaSy", (_W, 33)), "iamid": some(_B32, 17), "pgpid": some(_XU, 40),
    "rsabody": lambda draw: "\n".join(_RSA(draw).splitlines()[:9]), "md5fp": lambda draw: ":".join(some(_X, 2)(draw) for _ in range(16)),
}  # fmt: skip
