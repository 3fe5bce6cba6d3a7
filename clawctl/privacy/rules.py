# ruff: noqa: E501 - expressions and templates stay lines
"""What a secret looks like: formats of keys, names beside a value, commands, cards and people, kept as data.

Every rule reads a bounded number of characters at a bounded number of places, so its time grows with the length of the text and no
faster. A rule is tried only where one of its words stands. The formats are facts that the issuers document and that the public rule
sets (detect-secrets, gitleaks, trufflehog) list; the expressions are ours.
"""

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args
from urllib.parse import unquote

Kind = Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text that is looked through, and the same in forms of the same length."""

    text: str
    lower: str
    ascii: str  # in lower case too, with `?` for letters beyond ASCII: words are found in it fastest
    blobs: list[tuple[int, int]]  # where the runs are that may be a key


def make_text(text: str, lower: str) -> Text:
    return Text(text, lower, lower if text.isascii() else lower.encode("ascii", "replace").decode(), _blobs(text))


Finder = Callable[[Text], Iterator[Span]]


def finders(kinds: frozenset[Kind]) -> list[Finder]:
    """What finds secrets of these kinds, in the order in which kinds win where they overlap."""
    table: tuple[tuple[tuple[Kind, ...], Finder], ...] = (
        (("private_key",), _private_keys),
        (("api_key",), _keys),
        (("token",), _whole(_tokens)),
        (("password",), _whole(_passwords)),
        (("card",), _cards),
        (("email",), _emails),
        (("phone",), _phones),
    )
    return [finder for of, finder in table if kinds.intersection(of)]


_REST_OF = re.compile(r"[\w%+/=~.$:-]*")


def _whole(finder: Finder) -> Finder:
    """A long value to its end: what is longer than its rule reads leaves no tail."""

    def find(piece: Text) -> Iterator[Span]:
        reached = 0
        for span in finder(piece):
            if span.end - span.start < 100:
                yield span
                continue
            if not span.start < span.end <= reached:
                rest = _REST_OF.match(piece.text, span.end)
                reached = rest.end() if rest else span.end
            yield Span(span.start, max(span.end, reached), span.kind)

    return find


# ---- what text looks like --------------------------------------------------------------------------------------------------


def entropy(text: str) -> float:
    """Bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values()) if text else 0.0


_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[^\W\d_]")
_RUN = re.compile(r"[A-Za-z0-9]{12,}")


def _mixed(text: str) -> bool:
    return _DIGIT.search(text) is not None and _LETTER.search(text) is not None


def _has_dense_run(text: str) -> bool:
    """A run of letters and digits that is no word: names with a key's prefix (`sk-learn-…`) have none."""
    return any(_mixed(run) and entropy(run) >= 3.0 for run in _RUN.findall(text[:512]))


# ---- keys with a format of their own ---------------------------------------------------------------------------------------

_W = r"[A-Za-z0-9_-]"
_FORMATS = "|".join(
    (
        # models
        rf"sk-(?:proj-|ant-|svcacct-|admin-|or-v1-)?{_W}{{20,400}}", rf"claw-{_W}{{20,128}}",
        r"(?:gsk_|xai-|pplx-|nvapi-|tgp_v1_|tvly-|csk-|fw_|r8_|fc-|jina_|lsv2_(?:pt|sk)_|ABSK|bedrock-api-key-)[\w+/=-]{20,300}",
        r"hf_[A-Za-z0-9]{30,40}", r"api_org_[A-Za-z]{34}",
        # clouds
        r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z2-7]{16}", r"AIza[\w-]{35}", r"(?:GOCSPX-|ya29\.)[\w.-]{20,400}", r"LTAI[A-Za-z0-9]{16,24}",
        r"AKID[A-Za-z0-9]{32}", r"YC[A-Za-z0-9_-]{38}", r"AQVN[\w-]{35,38}", r"t1\.[\w-]{10,300}=*\.[\w-]{80,90}",
        r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}", r"(?:dop|doo|dor)_v1_[a-f0-9]{64}",
        r"(?:HRKU-[A-Za-z0-9_-]{36,64})", r"(?:fm1[ar]_|fm2_|fo1_)[A-Za-z0-9+/_-]{40,800}={0,3}", r"FlyV1[ ]?fm\d_[A-Za-z0-9+/]{40,800}",
        # code and packages
        r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{22,255}", r"(?:npm_|dckr_pat_|dckr_oat_|rubygems_|pypi-AgE|pypi-|sbp_|sb_secret_|CLOJARS_)[\w-]{24,300}",
        r"gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct|rtr)-[\w.-]{20,300}", r"GR1348941[\w-]{20}", r"AKCp[A-Za-z0-9]{60,80}", r"cmVmd[A-Za-z0-9]{59}",
        r"(?:ATATT3|ATBB|ATCTT3|ATSTT3)[\w=-]{24,300}", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{50,80}", r"sha256~[\w-]{43}", r"ops_eyJ[A-Za-z0-9+/=]{60,600}",
        r"(?:sqp_|squ_|sqa_)[a-f0-9]{40}", r"oy2[a-z0-9]{43}", r"sgp_[A-Za-z0-9_]{40,60}", r"bkua_[a-z0-9]{40}", r"CCIPAT_[\w]{40,80}", r"vercel_[A-Za-z0-9_]{24,60}",
        r"(?:shippo|duffel|lob)_(?:live|test)_[\w=-]{35,60}", r"(?:live|test)_[a-f0-9]{35}", r"A3-[A-Z0-9]{6}-[A-Z0-9-]{20,40}",
        # money
        r"(?:sk|rk|pk)_(?:live|test|prod)_[A-Za-z0-9]{14,247}", r"whsec_[A-Za-z0-9+/=]{24,128}", r"sq0(?:csp|atp|idp)-[\w-]{22,60}", r"EAAA[\w-]{50,64}",
        r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}", r"EZ[AT]K[A-Za-z0-9]{54}", r"FLWSECK(?:_TEST|_LIVE)?-[A-Za-z0-9]{12,40}(?:-X)?",
        r"access_token\$production\$[a-z0-9]{16}\$[a-f0-9]{32}", r"access-(?:sandbox|development|production)-[0-9a-f-]{36}", r"rzp_(?:live|test)_[A-Za-z0-9]{14,24}",
        # chat and mail
        r"xox[abposre](?:\.xox[a-z])?-[A-Za-z0-9-]{10,250}", r"xapp-\d-[A-Za-z0-9-]{20,200}", r"[MNO][A-Za-z0-9_-]{23,27}\.[\w-]{6,7}\.[\w-]{27,45}",
        r"SG\.[\w=.-]{60,72}", r"key-[a-f0-9]{32}", r"[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8}", r"[a-f0-9]{32}-us\d{1,2}", r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}",
        r"\d{8,10}:AA[\w-]{33}", r"SK[a-f0-9]{32}", r"EAA[MCG][A-Za-z0-9]{80,250}", r"KEY01[0-9A-F]{32}_[A-Za-z0-9]{22}", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,30}",
        r"(?:https?://)?hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/_]{30,80}", r"(?:https?://)?(?:\w{1,8}\.)?discord(?:app)?\.com/api/webhooks/\d{16,20}/[\w-]{60,80}",
        r"(?:https?://)?(?:[\w-]{1,40}\.)?webhook\.office\.com/webhookb2/[a-z0-9@-]{20,90}/IncomingWebhook/[a-z0-9]{32}/[a-z0-9-]{36}",
        # tools and data
        r"(?:shpat_|lin_api_|lin_oauth_|figd_|figo_|figdh_|ntn_|secret_(?=\w{43})|glsa_|glc_|aio_|phc_|phx_|pnu_|tfp_|rdme_|ico-|p8e-|pat-na\d-|fio-u-|tk-us-)[\w=+/-]{24,400}",
        r"(?:hvs|hvb|hvr)\.[\w-]{24,400}", r"(?:tskey-[a-z]{2,12}-|dapi|dkea|dose|NRAK-|NRII-|NRJS-|NRRA-|sntrys_|sntryu_|PMAK-|CFPAT-|pul-|HRKU-)[\w=+/-]{19,500}",
        r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,60}", r"pscale_(?:pw|tkn|oauth)_[\w=.-]{32,64}", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}", r"sm_[aps]at_[A-Za-z0-9]{16}",
        r"sk\.eyJ[\w-]{20,300}\.[\w-]{20,40}", r"dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk",
        r"eyJrIjoi[A-Za-z0-9+/=]{60,400}", r"AGE-SECRET-KEY-1[A-Z0-9]{50,60}", r"(?:sc|ext|scauth|authress)_[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[\w+/=-]{30,120}",
        r"API-[A-Z0-9]{26}", r"4b1d[A-Za-z0-9]{38}", r"(?:sdk|api|mob)-[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}",
        # the bodies of private keys without their first line (PKCS 8, PKCS 1, SEC 1, OpenSSH)
        r"MII[A-Za-z0-9]{2,5}IBA(?:DANBgkqhkiG9w0BAQEFAASC|AKCA)[A-Za-z0-9+/=]{40,4000}", r"MHcCAQEE[A-Za-z0-9+/=]{60,200}", r"MI[GH][A-Za-z0-9]AgEAMB[A-Za-z0-9+/=]{60,300}",
        r"MC4CAQAwBQYDK2V[A-Za-z0-9+/=]{40,60}", r"b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=]{40,4000}",
    )
)  # fmt: skip
_FORMAT = re.compile(rf"(?<![A-Za-z0-9])(?=[A-Za-z0-9])(?:{_FORMATS})")
# What a key consists of. All formats are looked for within such runs alone: there are few of them in a text.
_BLOB = re.compile(r"(?<![A-Za-z0-9_.+/=~:|%$@-])[A-Za-z0-9_.+/=~:|%$@-]{18,}")
_SOLID = re.compile(r"[A-Za-z0-9]{6}")
_WHOLLY = re.compile(
    r"(?:[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8}|[a-f0-9]{32}-us\d|key-|SK[a-f0-9]|AIza|hf_|api-|sdk-|mob-|live_|test_|4b1d|API-|oy2)"
)
_LONGER = re.compile(r"[A-Za-z0-9_-]*")
_EXAMPLE = re.compile(r"(?i)example|x{6}|your[_-]?|0{12}|1234567890abcdef$|placeholder|dummy|redacted")
_MEDIA = re.compile(
    r"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR|Qk0|SUQz|T2dnUw|AAAA[A-Za-z0-9]{4}ZnR5c|d09G[MR]|AAEAAAA|JVBERi0|T1RUTw|GkXfo)"
)
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])(?:[A-Za-z0-9+/]{16,}|[A-Za-z0-9_-]{16,})={0,2}(?![A-Za-z0-9+/_-])")
_HEX = re.compile(r"(?<![A-Za-z0-9])(?:[2-7][0-9a-fA-F]){16,}(?![A-Za-z0-9])")


def _blobs(text: str) -> list[tuple[int, int]]:
    """The runs that may be a key. What follows `;base64,` and begins as a picture does is none."""
    return [
        blob.span()
        for blob in _BLOB.finditer(text)
        if not (_MEDIA.match(text, blob.start()) and text.endswith("base64,", 0, blob.start()))
    ]


def _keys(piece: Text) -> Iterator[Span]:
    text = piece.text
    for start, end in piece.blobs:
        if not _SOLID.search(text, start, end):
            continue
        for match in _ISSUED.finditer(text, start, end):
            if _is_issued(match):
                yield Span(*match.span(), "api_key")
        for match in _FORMAT.finditer(text, start, end):
            if _is_key(match):
                longer = _LONGER.match(text, match.end())  # a format may have grown since its rule was written
                yield Span(match.start(), longer.end() if longer else match.end(), "api_key")


def _is_key(match: re.Match[str]) -> bool:
    found = match[0]
    if found.startswith("pk_") or _EXAMPLE.search(found):
        return False
    if _WHOLLY.match(found) and match.string[match.end() : match.end() + 1].isalnum():
        return False
    if found.startswith(("sk-", "claw-", "key-")) or len(found) > 30:
        return (
            _has_dense_run(found)
            or (_mixed(found) and entropy(found[:200]) >= 4.2)
            or (found[:3] == "hf_" and entropy(found) >= 3.5)
        )
    return _mixed(found) and entropy(found) >= 2.8 if found[:3] != "hf_" else entropy(found) >= 3.5


def encoded(piece: Text) -> Iterator[tuple[int, int, str]]:
    """What stands in base64 or hex, where that is text: its place, and what it says."""
    for start, end in piece.blobs:
        for match in _BASE64.finditer(piece.text, start, end):
            run = match[0]
            if run.islower() and run.isalpha():
                continue
            said = _decoded(run)
            if said is not None:
                yield *match.span(), said
            elif hexed := _HEX.match(run):
                said = bytes.fromhex(hexed[0]).decode("ascii", "replace")
                if said.isprintable():
                    yield match.start(), match.start() + hexed.end(), said


def is_login(name: str, value: str) -> bool:
    """Docker's `auth` and its like: a user and a password in base64."""
    if not name.lower().endswith(("auth", "authorization")) or _BASE64.fullmatch(value) is None:
        return False
    said = _decoded(value)
    return said is not None and _LOGIN.fullmatch(said) is not None


_LOGIN = re.compile(r"[\w.@+$-]{0,64}:\S{3,256}")


def _decoded(run: str) -> str | None:
    run = run.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        if not _is_text(binascii.a2b_base64(run[:16])):
            return None
        said = base64.b64decode(run[: len(run) - (len(run) % 4 == 1)] + "=" * (-len(run) % 4))
    except (binascii.Error, ValueError):
        return None
    return said.decode("utf-8", "replace") if _is_text(said[:4096]) else None


_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f-\xff]")


def _is_text(said: bytes) -> bool:
    return _NO_TEXT.search(said) is None


# A key of any issuer: short names, then what no name looks like. Ids look the same, so their names are listed.
_ISSUED = re.compile(
    r"(?<![A-Za-z0-9_-])(?P<issuer>(?:[a-z][a-z0-9]{1,11}[_-]){1,3}+)(?P<body>[A-Za-z0-9][A-Za-z0-9_-]{19,512})={0,2}(?![A-Za-z0-9])"
)
_IDS = frozenset(
    [
        "acct",
        "agent",
        "app",
        "art",
        "assistant",
        "asst",
        "ba",
        "batch",
        "bitnami",
        "blob",
        "blobs",
        "branch",
        "build",
        "bundle",
        "ca",
        "call",
        "card",
        "cas",
        "ch",
        "chat",
        "chatcmpl",
        "checkpoint",
        "chunk",
        "cid",
        "class",
        "client",
        "cluster",
        "cmpl",
        "col",
        "commit",
        "component",
        "container",
        "conv",
        "conversation",
        "correlation",
        "cri",
        "cs",
        "css",
        "ctr",
        "cus",
        "customer",
        "data",
        "deploy",
        "deployment",
        "dev",
        "digest",
        "doc",
        "docker",
        "dp",
        "emb",
        "embed",
        "emotion",
        "err",
        "error",
        "etag",
        "event",
        "evt",
        "exp",
        "experiment",
        "fc",
        "file",
        "fingerprint",
        "font",
        "fp",
        "ft",
        "ftjob",
        "gen",
        "git",
        "group",
        "hash",
        "id",
        "ids",
        "image",
        "img",
        "in",
        "index",
        "inv",
        "invoice",
        "item",
        "job",
        "js",
        "jsx",
        "kube",
        "layer",
        "link",
        "log",
        "main",
        "manifest",
        "md5",
        "message",
        "model",
        "module",
        "msg",
        "node",
        "nonce",
        "object",
        "obj",
        "order",
        "org",
        "page",
        "part",
        "pi",
        "pip",
        "pkg",
        "plan",
        "pm",
        "po",
        "pod",
        "pr",
        "price",
        "proc",
        "process",
        "prod",
        "product",
        "proj",
        "project",
        "py",
        "rec",
        "ref",
        "reference",
        "release",
        "replicaset",
        "req",
        "request",
        "res",
        "resource",
        "resp",
        "response",
        "result",
        "rev",
        "revision",
        "rs",
        "run",
        "runs",
        "sc",
        "script",
        "sess",
        "session",
        "set",
        "seti",
        "sha",
        "sha1",
        "sha256",
        "sha384",
        "sha512",
        "shard",
        "si",
        "sig",
        "snap",
        "span",
        "src",
        "step",
        "style",
        "sub",
        "subnet",
        "svc",
        "svelte",
        "tag",
        "task",
        "tbl",
        "team",
        "test",
        "tests",
        "thread",
        "tmp",
        "toolu",
        "tool",
        "tr",
        "trace",
        "track",
        "transaction",
        "ts",
        "txn",
        "upload",
        "user",
        "usr",
        "uuid",
        "v1",
        "v2",
        "v3",
        "vec",
        "vendor",
        "ver",
        "version",
        "vm",
        "vol",
        "volume",
        "vs",
        "web",
        "worker",
        "workspace",
        "ws",
        "blake2",
        "blake3",
        "md",
        "integrity",
    ]
)
_KEY_PARTS = frozenset(
    ["ak", "api", "apikey", "auth", "key", "keys", "lic", "license", "pat", "pk", "sdk", "sec", "secret", "sk", "tok", "token"]
) - {"pk"}
_UUID_ALONE = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}={0,2}")
_WORD_IN = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}")
_MODES = frozenset(("live", "test", "prod", "dev", "sandbox"))


def _is_issued(match: re.Match[str]) -> bool:
    parts, body = re.split("[_-]", match["issuer"][:-1]), match["body"]
    if parts[0] in _IDS or (len(parts) > 1 and not _MODES.issuperset(parts[1:]) and not _IDS.isdisjoint(parts)):
        return False
    if _EXAMPLE.search(match[0][:200]):
        return False
    keyed = not _KEY_PARTS.isdisjoint(parts)
    if _UUID_ALONE.fullmatch(body):
        return keyed
    run = max(_RUN.findall(body), key=len, default="")
    if _is_random(run):
        return len(body) >= 20 and len(run) >= 16
    dense = run.islower() and _mixed(run) and entropy(run[:128]) >= 3.0 and len(_WORD_IN.sub("", run)) * 2 >= len(run)
    return dense and len(run) >= 24 and (keyed or (len(run) >= 32 and match["issuer"][-1] == "_"))


def _is_random(run: str) -> bool:
    """Letters of both cases and digits in an order that no name in camel case has."""
    return (
        not run.islower() and not run.isupper() and _mixed(run) and any(map(str.islower, run)) and any(map(str.isupper, run))
        and len(_WORD_IN.sub("", run[:256])) * 2 >= len(run[:256]) and entropy(run[:256]) >= 3.3
    )  # fmt: skip


def _is_opaque(value: str) -> bool:
    """A key without any format: 24 letters and digits or more that are random, or hex."""
    run = max(_RUN.findall(value), key=len, default="")
    return len(run) >= 20 and (
        _is_random(run) or (run.islower() and _mixed(run) and entropy(run) >= 3.0 and not _WORD_5.search(run))
    )


_WORD_5 = re.compile(r"[a-z]{7}")


# ---- tokens that travel in headers -----------------------------------------------------------------------------------------

_JWT = re.compile(
    r"eyJ[\w-]{8,4000}(?:\r?\n[ >]{0,8}[\w-]{8,4000}){0,2}\.[\w-]{8,4000}(?:\r?\n[ >]{0,8}[\w-]{8,4000}){0,2}(?:\.[\w-]{0,4000}){0,3}"
)
_JWT_REST = re.compile(r"(?:\r?\n[ >]{0,8}(?=[\w.-]{0,200}\d)(?=[\w.-]{0,200}[A-Z])[\w-]{16,1000}(?:\.[\w-]{16,1000})?)")
_HEADER = re.compile(
    r"""(?i)(?:\bbearer[ ]+(?:token[ ]+)?|\b(?:proxy-)?authorization\\{0,3}["']?\s{0,3}[:=,]\s{0,3}\\{0,3}["']?(?:basic|token|digest|apikey|key|bot|bearer|)[ ]*)"""
    r"""(?P<value>[\w.~+/=%-]{8,4096})"""
)
_COOKIE = re.compile(r"""[ \t"']{0,4}(?P<name>[\w.-]{1,64})=(?P<value>[^\s;,"'\\<>]{16,2048})""")
_SESSION = re.compile(r"(?i)sess(?:ion)?_?(?:id\w{0,8}|token|key|secret)=(?P<value>[\w%.+/=-]{16,512})")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$")
_QUERY = re.compile(
    r"(?i)[?&;](?:sig|key|code|sign|auth|hash|x-amz-signature|x-goog-signature|signature|token|t|st|apikey|appid|subscription-key)=(?P<value>[\w%.~+/=-]{20,1024})"
)
_SIGNED = re.compile(r"(?i)sig(?:nature)?(?:=|%3d)(?P<value>[\w%+/=-]{24,512})")


def _tokens(piece: Text) -> Iterator[Span]:
    text, lower = piece.text, piece.ascii
    at = text.find("eyJ")
    while at >= 0:
        match = None if at and text[at - 1].isalnum() else _JWT.match(text, at)
        if match is not None:
            rest = _JWT_REST.match(text, match.end()) if match.end() == len(text) or text[match.end()] in "\r\n" else None
            yield Span(at, rest.end() if rest else match.end(), "token")
        at = text.find("eyJ", match.end() if match else at + 1)
    for at in _places(lower, ("bearer", "authorization")):
        if (match := _HEADER.match(text, at)) and _is_credential(match):
            yield Span(*match.span("value"), "token")
        if lower.startswith("a", at) and (match := _SCHEME.match(text, at)):
            yield from _parameters(text, match.end())
            if match["value"] and _is_strong_key(match["value"]) and not _is_stand_in(match["value"]):
                yield Span(*match.span("value"), "token")
    for at in _places(lower, ("hook", "/services/t", "/bot", "/key/")):
        if (match := _HOOK.match(text, at)) and _in_link(text, at) and _has_opaque_part(match["value"]):
            yield Span(*match.span("value"), "token")
    for at in _places(lower, ("cookie",)):
        yield from _cookies(text, at)
    for at in _places(lower, ("sess",)):
        match = _SESSION.match(text, at)
        if match and "_" not in text[at : at + 9] and _is_strong_key(match["value"]) and not _UUID.match(match["value"]):
            yield Span(*match.span("value"), "token")
    for match in _query(piece, _QUERY, "="):
        if _is_strong_key(match["value"]) and not _EXAMPLE.search(match["value"][:200]):
            yield Span(*match.span("value"), "token")
    for at in _places(lower, ("sig",)):
        if (match := _SIGNED.match(text, at)) and _is_strong_key(match["value"]):
            yield Span(*match.span("value"), "token")


_SCHEME = re.compile(
    r"""(?i)authorization\\{0,3}["']?\]?\s{0,3}(?::|=>?|,)\s{0,3}\\{0,3}[bf]?["'`]?[a-z][\w-]{1,30}[ ]+(?=(?P<value>[\w.~+/=:%|$!-]{12,4096})?)"""
)
_PARAMETER = re.compile(r"""[ ,]{0,3}(?P<name>[A-Za-z][\w-]{0,30})=\\{0,3}["']?(?P<value>[^\s"',;\\]{0,1024})\\{0,3}["']?""")
_OPEN_PARAMETERS = frozenset(
    ("username", "realm", "uri", "algorithm", "qop", "nc", "signedheaders", "keyid", "headers", "oauth_consumer_key")
)
_HOOK = re.compile(
    r"(?i)(?:hooks?(?:b2)?(?:\.[\w.-]{1,60})?(?::\d{1,5})?/(?:[a-z]{1,16}/){0,3}|/key/|/services/(?=T)|/bot(?=\d{5,14}:))(?P<value>[\w@/+.=%:~-]{8,512})"
)


def _parameters(text: str, at: int) -> Iterator[Span]:
    """`Digest username="x", response="…"`; `AWS4-HMAC-SHA256 Credential=…, Signature=…`."""
    for _ in range(16):
        match = _PARAMETER.match(text, at)
        if match is None:
            return
        at = match.end()
        if match["name"].lower() not in _OPEN_PARAMETERS and _is_strong_key(match["value"]) and not _is_stand_in(match["value"]):
            yield Span(*match.span("value"), "token")


def _in_link(text: str, at: int) -> bool:
    """Whether the place is in an address: `://` or a host stands before it without a space between."""
    before = text[max(0, at - 120) : at + 80]
    return "://" in re.split(r"[\s\"'<>`]", before[: min(at, 120)])[-1] or text.startswith(("hooks.", "hook."), at)


def _has_opaque_part(path: str) -> bool:
    return any(
        len(part) >= 16 and (_is_opaque(part) or _is_strong_key(part) or _UUID_ALONE.fullmatch(part))
        for part in re.split("[/:@]", path)
    )


def _query(piece: Text, pattern: re.Pattern[str], _: str) -> Iterator[re.Match[str]]:
    at = -1
    while (at := min((found for found in (piece.text.find(mark, at + 1) for mark in "?&") if found >= 0), default=-1)) >= 0:
        if match := pattern.match(piece.text, at):
            yield match


def _cookies(text: str, at: int) -> Iterator[Span]:
    """The values of one cookie line, the session's above all."""
    begin = text.find(":", at, at + 10)
    line_end = text.find("\n", at, at + 2048)
    end = min(line_end if line_end >= 0 else at + 2048, len(text))
    if begin < 0:
        return
    at = begin + 1
    while at < end and (match := _COOKIE.match(text, at)):
        if _is_strong_key(match["value"]):
            yield Span(*match.span("value"), "token")
        following = text.find(";", match.end(), end)
        at = following + 1 if following >= 0 else end


def _is_credential(match: re.Match[str]) -> bool:
    """Not prose (`bearer of bad news`); `Basic` credentials are short base64, in which no digit need be."""
    value, named = match["value"], "authorization" in match[0].lower()
    if _EXAMPLE.search(value) or _CODE.match(value):
        return False
    return (
        (_mixed(value) and (named or entropy(value) >= 3.0 or len(value) < 16))
        or (named and " " in match[0] and entropy(value) >= 2.5 and len(value) >= 12 and not value.islower())
        or ("basic" in match[0].lower() and named and entropy(value) >= 2.5)
    )


def _places(lower: str, words: tuple[str, ...]) -> Iterator[int]:
    for word in words:
        at = lower.find(word)
        while at >= 0:
            yield at
            at = lower.find(word, at + len(word))


# ---- private keys ----------------------------------------------------------------------------------------------------------

_PEM = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
_PEM_END = re.compile(r"-{4,5} ?END [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)? ?-{4,5}")
PEM_BODY = re.compile(r"""(?:[A-Za-z0-9+/=\s\\:,.()>|"'*#&;%]|-(?!----))*""")  # line ends may be escaped, quoted or indented
_PUTTY = re.compile(r"Private-Lines: \d{1,4}(?P<value>(?:(?:\s|\\r|\\n){1,4}[A-Za-z0-9+/=]{4,80}){1,400})")


def _private_keys(piece: Text) -> Iterator[Span]:
    """To the end line, or as far as a key goes where that is missing."""
    text, done = piece.text, 0 if "PRIVATE KEY" in piece.text else len(piece.text)
    while found := _PEM.search(text, done):
        start, done = found.span()
        body = PEM_BODY.match(text, done)
        end = body.end() if body else done
        if len(re.sub(r"\\[nrt]|[^A-Za-z0-9+/=]", "", text[done : min(end, done + 2048)])) >= 32 and _DENSE_BODY.search(
            text, done, end
        ):
            closing = _PEM_END.match(text, end)
            done = closing.end() if closing else len(text[:end].rstrip())
            yield Span(start, done, "private_key")
    for at in _places(text, ("Private-Lines: ",)):
        if match := _PUTTY.match(text, at):
            yield Span(*match.span("value"), "private_key")


_DENSE_BODY = re.compile(r"[A-Za-z0-9+/=]{24}")

# ---- names beside a value --------------------------------------------------------------------------------------------------

# The last word of a name says what its value is. Words of one language that are words of another need a border before them.
_PASSWORD_WORDS = [
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "passcode",
    "passwort",
    "passworte",
    "passord",
    "passordet",
    "pass",
    "pswd",
    "pwd",
    "passwrd",
    "passw",
    "psk",
    "kennwort",
    "kennwortes",
    "zugangscode",
    "passe",
    "mdp",
    "motdepasse",
    "contraseña",
    "contrasena",
    "contrasenya",
    "clave",
    "claves",
    "senha",
    "senhas",
    "palavra-passe",
    "wachtwoord",
    "wachtwoorden",
    "hasło",
    "haslo",
    "hasla",
    "parola",
    "parolă",
    "parole",
    "parolei",
    "heslo",
    "hesla",
    "salasana",
    "adgangskode",
    "adgangskoden",
    "kodeord",
    "kodeordet",
    "jelszó",
    "jelszo",
    "jelszava",
    "lozinka",
    "geslo",
    "lösenord",
    "losenord",
    "lösenordet",
    "losenordet",
    "slaptažodis",
    "slaptazodis",
    "parool",
    "pasahitza",
    "şifre",
    "sifre",
    "şifresi",
    "şifrem",
    "sifrem",
    "şifreniz",
    "mật·khẩu",
    "mat·khau",
    "kata·sandi",
    "kata·laluan",
    "sandi",
    "пароль",
    "пароля",
    "паролем",
    "пароли",
    "паролю",
    "парола",
    "лозинка",
    "κωδικός",
    "κωδικος",
    "συνθηματικό",
    "סיסמה",
    "סיסמא",
    "הסיסמה",
    "كلمة·المرور",
    "كلمة·السر",
    "رمز·عبور",
    "گذرواژه",
    "पासवर्ड",
    "รหัสผ่าน",
    "パスワード",
    "暗証番号",
    "パスコード",
    "パスフレーズ",
    "密码",
    "密碼",
    "口令",
    "비밀번호",
    "암호",
    "패스워드",
    "비번",
]
_KEY_WORDS = [
    "secret",
    "secrets",
    "token",
    "tokens",
    "credential",
    "credentials",
    "key",
    "keys",
    "auth",
    "apikey",
    "authkey",
    "accesskey",
    "secretkey",
    "appsecret",
    "bearer",
    "schlüssel",
    "schluessel",
    "geheimnis",
    "geheim",
    "clé",
    "jeton",
    "chave",
    "llave",
    "chiave",
    "ключ",
    "ключа",
    "токен",
    "токена",
    "секрет",
    "密钥",
    "密鑰",
    "令牌",
    "キー",
    "トークン",
    "シークレット",
    "토큰",
    "키",
]
_LONGEST_FIRST = sorted({word.replace("·", " ") for word in _PASSWORD_WORDS}, key=len, reverse=True)
_KEYS_LONGEST_FIRST = sorted(_KEY_WORDS, key=len, reverse=True)
_ANCHORS_ASCII = [
    "pass",
    "pswd",
    "pwd",
    "psk",
    "secret",
    "token",
    "credential",
    "key",
    "auth",
    "kennwort",
    "zugangscode",
    "mdp",
    "contrase",
    "clave",
    "senha",
    "wachtwoord",
    "hasl",
    "parol",
    "heslo",
    "hesla",
    "salasana",
    "adgangskode",
    "kodeord",
    "jelsz",
    "lozinka",
    "geslo",
    "losenord",
    "slapta",
    "pasahitza",
    "sifre",
    "kata",
    "sandi",
    "kata",
    "laluan",
    "mat",
    "khau",
    "schluessel",
    "geheim",
    "jeton",
    "chave",
    "llave",
    "chiave",
]
_ANCHORS = tuple(word.replace("\u00a0", " ") for word in _ANCHORS_ASCII)
_ANCHORS_BEYOND = tuple(
    dict.fromkeys(
        re.sub(r"(?<=.{4}).*", "", word.replace("·", " ")) if not word.isascii() else word
        for word in (*_PASSWORD_WORDS, *_KEY_WORDS) if not word.isascii()
    )
)  # fmt: skip
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_NEEDED = {word: frozenset(letter for letter in word if letter > "\x7f") for word in _ANCHORS_BEYOND}
_SUFFIX = r"(?:[_.-]?(?:\d{1,3}|prod|dev|test|stage|live|old|new|value|hash|b64|base64|base|data|string|text|plain|field|file_content|access[_-]?key|id_key|key|primary|secondary))?"
_P, _K = "|".join(map(re.escape, _LONGEST_FIRST)), "|".join(map(re.escape, _KEYS_LONGEST_FIRST))
_NAME = re.compile(rf"(?:(?P<password>{_P})|(?P<key>{_K}))(?P<suffix>{_SUFFIX}{_SUFFIX})$", re.IGNORECASE)
_NAME_AT = re.compile(rf"(?:{_P}|{_K}|[a-z]{{3,12}})[\w-]{{0,24}}(?:\.\w{{1,12}}(?=[\"' ]{{0,2}}[:=]))?", re.IGNORECASE)
_MOST_NAMES = 400  # in one piece
_SHORT = frozenset(
    [
        "pass",
        "passe",
        "clave",
        "claves",
        "parole",
        "sandi",
        "geslo",
        "parola",
        "mdp",
        "pwd",
        "senha",
        "heslo",
        "passw",
        "psk",
        "auth",
        "key",
        "keys",
    ]
)
_BORDER = re.compile(r"(?:^|[^a-z0-9]|db|my|root|user|admin|smtp|mysql|ftp)$")
_BEFORE_KEY = re.compile(
    r"(?:secret|api|access|auth|account|encryption|encrypt|signing|sign|private|priv|service|master|app|storage|client|admin|deploy|ssh|crypto"
    r"|cipher|aes|hmac|validation|decryption|decrypt|machine|recovery|activation|webhook|license|licence|shared|subscription|function|consumer|session|jwt|server|write|root|host|bot|integration"
    r"|project|ingest|rest|app|test|live|prod|openai|anthropic|stripe|azure|google|gemini|mistral|datadog|dd|newrelic|sendgrid|twilio|mailgun"
    r"|airtable|algolia|maps|deepl|groq|cohere|heroku|x|clé|cle)[_ .-]?$", re.IGNORECASE,
)  # fmt: skip
_NOT_KEY = re.compile(
    r"(?:^|[^A-Za-z]|(?-i:(?<=[a-z])(?=[A-Z])))(?:primary|foreign|cache|sort|partition|public|pub|row|group|index|lookup|hash|idempotency|object|dedup|unique|map|registry|next|page|next[_-]?page"
    r"|continuation|pad|bos|eos|unk|sep|cls|mask|stop|cancellation|cancel|max|min|num|n|total|prompt|completion|input|output|cached|reasoning"
    r"|first|last|special|end|start|new|added|per|compare|dict|item|json|yaml|host|known|routing|composite|natural|surrogate|sync|resume|shard)s?[_ .-]?$",
    re.IGNORECASE,
)  # fmt: skip

_Q = r"""\\{0,3}["'`“”«»„]"""
_QUOTED = rf"""(?P<quote>{_Q})(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\n\\])){{3,256}}+)(?:(?P=quote)|(?=[”»“]))"""
_BARE = r"""(?P<bare>(?:[^\s"'`<>,;&\\|]|[,;&|<>](?![\s/]|$|[\w .-]{1,30}=)|\\(?![nrt"'`\\\s])|["'`](?=\w)){3,256}+)"""
_TYPE = r"(?:[ ]?:[ ]?[&\w<>\[\].?*]{1,24}[ ]{0,2}(?==))?"
_WRAP = r"""(?:(?:\[\]byte|Buffer\.from|SecureString|String|str|bytes|literal|plain|secret)?\((?=\\{0,3}["']))?(?:[bruf]{1,2}(?=\\{0,3}["']))?"""
_ASSIGN = re.compile(
    rf"""(?:{_Q})?[\])}}*_]{{0,3}}{_TYPE}[ \t]{{0,12}}(?::=|=>|->|={{1,3}}|\?=|\|\|=|:{{1,2}}(?!/)|→|➜|%=)[*_]{{0,2}}[ \t]{{0,12}}"""
    rf"""(?:(?:[|>][+-]?|!!?\w{{1,8}})?[ \t]{{0,8}}(?:\r?\n[ \t>]{{1,16}})?)?{_WRAP}(?:{_QUOTED}|{_Q}?{_BARE})"""
)
_ENCODED = re.compile(
    r"(?i)(?:%22|%27|%5D){0,2}(?:%3D|%3A|=)(?:%20|\+)?(?:%22|%27)?(?P<value>(?:[\w.~!*()$@/+-]|%(?!26|22|27|3B|7D|2C)[0-9a-f]{2}){4,512})"
)
_COPULA = (
    r"(?:[ \t]{1,3}(?:is now|is still|is|was|ist jetzt|ist|lautet|war|est|es|era|é|è|er|är|ær|on|jest|to|это|был|adalah|ialah|là|je|van|im|zu|para"
    r"|है|คือ|هي|هو|είναι|heißt|reads|becomes)(?=[ \t:])|[ \t]{0,3}(?:=|:|-(?=[ ])|–|—|→|は|が|を|是|为|為|는|은|이|가))"
)
_PROSE = re.compile(
    rf"""(?:{_Q})?[*_]{{0,2}}(?:(?<![\"'`])(?:[ \t]{{1,3}}[\w'’@.-]{{1,20}}){{1,4}}?)??{_COPULA}[ \t]{{0,3}}[:*_]{{0,3}}[ \t]{{0,3}}[*_]{{0,2}}(?P<open>{_Q})?(?P<value>[^\s"`“”«»„\\]{{4,128}})""",
    re.IGNORECASE,
)
_CJK = re.compile(rf"""[ \t]{{0,2}}(?:は|が|を|是|为|為|는|은|이|가|:|=)?[ \t]{{0,2}}(?:{_Q}|[「『])?(?P<value>[!-~]{{4,128}})""")
_PAIR = re.compile(
    rf"""(?:{_Q})?\s{{0,4}}[,}}>]?\s{{0,60}}(?:-\s{{1,4}})?(?:{_Q})?(?:value|content|default|val)(?:{_Q})?\s{{0,4}}[:=]\s{{0,4}}(?:{_QUOTED}|{_BARE})""",
    re.IGNORECASE,
)
_DEFAULT = re.compile(rf"""(?:{_Q})?\s{{0,4}}\{{[^{{}}]{{0,160}}?\b(?:default|value)\s{{0,4}}=\s{{0,4}}{_QUOTED}""")
_ELEMENT = re.compile(r"""[^<>\n]{0,60}>\s{0,8}(?:<!\[CDATA\[)?(?P<value>[^<>\n]{3,256})(?:</|\]\]>)""")
_NEXT_ELEMENT = re.compile(
    r"""(?:[ :]{0,2}(?:</\w{1,12}>\s{0,20}){1,2}|[^<>\n]{0,80}>\s{0,20}(?=<value|<string))<\w{1,12}[^<>\n]{0,60}>(?:<\w{1,8}>)?(?P<value>[^<>\s]{4,256})</"""
)
_COMMA = re.compile(rf"""{_Q}\s{{0,4}},\s{{0,4}}{_QUOTED}""")
_SPACE = re.compile(
    rf"""(?:{_Q})?(?:[ \t]{{1,2}}(?=[^\x00-\x7f])[^\W\d_]{{1,16}}){{0,3}}[ \t]{{1,12}}{_Q}?(?P<value>[^\s"'`“”«»„]{{4,256}})"""
)
_COPULAS = frozenset(["is", "as", "ist", "als", "est", "es"])

_STAND_INS = """
password passwd passphrase pass pwd secret token key apikey api_key string str text none null nil true false undefined
required optional hidden changeme change_me change-me example placeholder redacted unknown empty todo tbd yes no bool int bytes
object value default wrong incorrect invalid correct expired missing weak strong reset protected encrypted hashed stored saved
root admin user username test guest postgres login foo bar dummy sample mypassword yourpassword secretref not only never always
self cls this that kwargs args type number integer boolean any char varchar optional[str] public private const function
"""
_PLACEHOLDERS = frozenset((*_STAND_INS.split(), *_LONGEST_FIRST, *_KEY_WORDS))
_TEMPLATE = re.compile(
    r"""(?ix) <[^>]*>?$ | \{ | \$ (?:[({A-Z_a-z]|\w+$) | %\w+% $ | %(?![0-9a-f]{2})\w+ $ | % [({] | \[redacted: | @\w+@ $ | \.{3} | x{3,} | your | my[_-]?(?:password|secret|token|key)
    | (?:sk|pk)-(?:x+|\.+|your) | [*•.\#x·-]+ $ | \[?redact | (?:enter|insert|replace|change|put|add|set|todo|fixme|example|dummy|placeholder|sample|secrets?\.)[_. -]? (?=[a-z]|$)
    | \(\s | \(?(?:optional|again|required|hidden|empty|none)\b | &lt; | \#\{ | !(?:vault|secret|ref|sub|env) | op:// | vault: | env[.:] | process\.env | arn: | projects/ | enc\[ | keyring"""
)
_HOLE = re.compile(r"\$\{|\{\{|\.\.\.$|…$|%[({]\w+|\}\}$|\$\(")
_CODE = re.compile(
    r"""(?x) [A-Za-z_]{1,40}(?:(?:\.|->|::|\?\.)[A-Za-z_]{1,40}){1,8}[\W_]*$ (?<!!) | [A-Za-z_][\w.]{0,80}(?:[(\[]|<[A-Za-z_\[{(]) | self\. | os\. | [A-Za-z_]\w*:$
    | ~?\.{0,2}/[a-z0-9_.-]+(?:/[\w./-]*)?$  # a path
    | \w{2,12}:// | [A-Z]:\\ | [\w.+-]{1,64}@[\w-]{1,63}\.[a-z.]{2,24}$ | [a-z]+(?:[A-Z][a-z]+){1,6}$ | [a-z_]+(?:_[a-z]+)+[;,)]*$ | (?:new|await|function|lambda|async)\b | \w+\s?=> | [!=<>]=
    | &[a-z_]+$ | \*\w+$ | \w+\)+;?$ | \w{1,40}\|\w"""
)
_TECHNICAL = re.compile(
    r"""(?ix) \W*(?: (?:sha|md|rsa|oauth|base|utf|aes|bcrypt|scrypt|argon|pbkdf|ed|ecdsa|hs|rs|es|ps|rfc|iso|http|tls|ssl|v|h|ipv|nist|fips|cve|gpt|page|line|step|section|col|row|type|test|user|attempt|issue|pr|php|python|py|node|win|k8s|s|p|ip|x|b|e2e|i18n|l10n|a11y|oauth|owasp|web|db|saml|crypt|des|wpa|mp|log4j|level|error|err|var|foo|bar|arg|param|field|column|case|item)
      [-_.]?\d{1,4}[a-z]?(?:[-_.][a-z0-9]+)* | \d+(?:[-–.]?\d+)?[-–]?[a-z]{1,12}\.? | \d+(?:[.:,/_-]\d+)* | \d+(?:st|nd|rd|th) | \d+[%€$£+]? ) \W*$"""
)


def is_secret_under(name: str, value: str, quoted: bool) -> bool:
    """Whether `value` is a secret, given that it stands under `name`: a name says much, its value must still look like one.

    A password may be anything that is no placeholder or code; unquoted, in prose, it must not look like a word. What is named
    key, secret or token must look random.
    """
    kind = kind_of_name(name)
    if kind is None:
        return False
    value = value.strip()
    if kind == "password":
        return _is_password(value) if quoted else _is_bare_password(value)
    return _is_strong_key(value) and not _is_stand_in(value)


@lru_cache(maxsize=4096)
def kind_of_name(name: str) -> Literal["password", "key"] | None:
    """What a name says of its value. `compass` names no password and `keyboard_key` no key."""
    name = name[-64:]
    found = _NAME.search(name)
    if found is None:
        return None
    word, before = (found["password"] or found["key"]).lower(), name[: found.start()]
    if found["suffix"].lower().lstrip("_.-") in ("hash", "string") and found["key"] is not None:
        return None
    if found["password"] is not None:
        free = (
            word not in _SHORT
            or not before
            or (word == "pass" and found[0][0].isupper())
            or _BORDER.search(before.lower()) is not None
        )
        return "password" if free else None
    if word in ("key", "keys"):
        strong = _BEFORE_KEY.search(before) is not None
        vendor = before.isupper() and before.endswith("_") and len(before) > 2
        return "key" if (strong or vendor) and not _NOT_KEY.search(before) else None
    if word == "auth":
        return "key" if not before or before[-1] in "_-. " else None
    return None if _NOT_KEY.search(before) else "key"


def _is_stand_in(value: str) -> bool:
    bare = value.strip("\"'`“”«»„()[]{}<>.,;:!?* ").lower()
    return (
        bare in _PLACEHOLDERS
        or bool(_TEMPLATE.match(value))
        or _HOLE.search(value[:256]) is not None
        or bool(_CODE.match(value[:256]))
    )


def _is_password(value: str) -> bool:
    """Of a quoted value under a password's name: anything that is no placeholder, no code and no sentence."""
    if not 4 <= len(value) <= 256 or _is_stand_in(value):
        return False
    if " " in value:
        return value.count(" ") <= 6 and _is_odd(value.replace(" ", "")) and value[-1] not in ".:" and not _looks_prose(value)
    return not (value.isalpha() and len(set(value)) == 1)


def _looks_prose(value: str) -> bool:
    return bool(
        re.search(
            r"(?i)\b(?:must|should|your|please|enter|the|is|for|of|not|with|and|or|at|in|muss|bitte|le|la|el|de|der|die|das|no|wrong|invalid|least)\b",
            value,
        )
    )


def _is_bare_password(value: str) -> bool:
    value = value.rstrip(".:!?,;)")
    return len(value) + 1 > 4 and len(value) >= 4 and _is_odd(value) and not _is_stand_in(value) and not _TIME.match(value)


_TIME = re.compile(r"\d{1,4}[-:/.]\d{1,2}([-:/.]\d{1,4})*(?:T.*)?$|\d{1,3}$")


def _is_odd(value: str) -> bool:
    """Not a word, a name or words with hyphens."""
    return any(not letter.isalpha() and letter not in "_.-/'’" for letter in value)


def _is_strong_password(value: str, least: int = 4) -> bool:
    """Of a value that stands near a password's name: it must look like nothing else."""
    bare = value.rstrip(".,;:?!)]}*_\"'`”»")
    if not least <= len(bare) <= 128 or _is_stand_in(value) or _TECHNICAL.match(bare):
        return False
    if bare.isdigit() or _IDEOGRAPHS.search(bare):
        return bare.isdigit() and len(bare) >= 6 and least <= 6
    special = re.search(r"\w[!@#$%^&*?~+=|§]+\w|[!@#$%^&*?~+|§]\d|\d[!#$%&*?]|[A-Za-z][#$%^&*]$", value.rstrip(".,;:)\"'"))
    return _LETTER.search(bare) is not None and (special is not None or _DIGIT.search(bare) is not None) and "://" not in bare


def _is_stronger_password(value: str) -> bool:
    """Of a value with nothing but a space before it: letters and digits in no order of a word."""
    bare = value.rstrip(".,;:?!)]}*_\"'`")
    if not _is_strong_password(value, 6) or bare.isdigit():
        return False
    signs = re.search(r"\w[!@#$%^&*?~+=§]+\w|[!#$%^&*?]", value) is not None
    if not _mixed(bare) or len(bare) < 7 or bare.count("/") > 2:
        return False
    return signs or _SHUFFLED.search(bare) is not None or (len(bare) >= 12 and entropy(bare) >= 3.2 and not _is_wordy(bare))


_SHUFFLED = re.compile(r"\d[A-Za-z]+\d|[A-Za-z]{2}\d{2,}$")
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def _is_strong_key(value: str) -> bool:
    """Random letters and digits."""
    value = value.strip("\"'`“”«»,;")
    if len(value) < 12 or " " in value or not _mixed(value) or _EXAMPLE.search(value[:64]):
        return False
    return entropy(value[:256]) >= 3.0 and not _is_wordy(value) and not _CODE.match(value[:256])


def _is_wordy(value: str) -> bool:
    """Words and small numbers with separators between them (`my-db-secret-2`), a date, a version: a name, not a key."""
    return len(value) < 60 and all(
        re.fullmatch(r"[A-Za-z]{0,14}\d{0,2}|\d{1,4}|v\d+", part) for part in re.split(r"[-_./:@#]", value)
    )


def _passwords(piece: Text) -> Iterator[Span]:
    text, lower = piece.text, piece.ascii
    done, names, places = 0, 0, set(_places(lower, _ANCHORS))
    if not text.isascii():
        letters = set("".join(_BEYOND_ASCII.findall(piece.lower)))
        places.update(_places(piece.lower, tuple(word for word, needed in _NEEDED.items() if needed <= letters)))
    for at in sorted(places):
        if at < done:
            continue
        named = _named_at(text, lower, at)
        if named is None:
            continue
        done, names = named.end, names + 1
        if names > _MOST_NAMES:  # no text that somebody wrote; what hides in it is not looked for but taken out
            yield Span(0, len(text), "password")
            return
        for span in _beside(text, lower, named):
            done = max(done, min(span.end, at + 300))
            yield span
    yield from _in_addresses(text)
    yield from _in_commands(text, lower)
    yield from _in_calls(text, lower)
    yield from _in_lines(text, lower)
    yield from _in_forms(text, lower)
    yield from _in_constructors(text)
    yield from _in_chains(text)


@dataclass(frozen=True, slots=True)
class Named:
    """A name that says of a value beside it what it is."""

    begin: int
    end: int
    name: str
    kind: Literal["password", "key"]


def _named_at(text: str, lower: str, at: int) -> Named | None:
    """The name around the word at `at`, if it names a secret."""
    if lower.endswith("[redacted:", 0, at):
        return None
    found = _WORDISH.match(text, at) or _EXACT.match(text, at)
    if found is None:
        return None
    begin, end = at, found.end()
    while begin > 0 and at - begin < 32 and (text[begin - 1].isalnum() or text[begin - 1] in "_.-"):
        begin -= 1
    name = text[begin:end].rstrip(".-_")
    tries = [(begin, name)]
    if "." in name:
        tries.append((begin, name[: name.rfind(".")]))
    if exact := _EXACT.match(text, at):
        tries.append((begin, text[begin : exact.end()]))
    if name.lower() in ("key", "keys") and (earlier := _EARLIER.search(text, max(0, begin - 16), begin)):
        tries.append((earlier.start(), text[earlier.start() : end]))
    for begin, name in tries:
        kind = kind_of_name(name)
        if kind is not None:
            return Named(begin, begin + len(name), name, kind)
    phrase = _PHRASE.match(text, at)
    return Named(begin, phrase.end(), phrase[0], "password") if phrase else None


def _beside(text: str, lower: str, named: Named) -> Iterator[Span]:
    """The values beside a name, whichever way they are written."""
    if _NO_VALUE.search(text, max(0, named.begin - 12), named.begin) or (
        text.endswith("${", 0, named.begin) and text.startswith(("?", ":?", "+", ":+"), named.end)
    ):
        return
    if found := _assigned(text, named.begin, named.end, named.name, named.kind):
        yield found
    else:
        yield from _near(text, lower, named.begin, named.end, named.name, named.kind)


_NO_VALUE = re.compile(r"\b(?:type|interface|struct|enum|trait)[ ]$")  # what follows is a type's name
_WORDISH = re.compile(r"[\w-]{2,48}(?:\.\w{1,16})?")
_EXACT = re.compile(
    "|".join(map(re.escape, [word for word in (*_LONGEST_FIRST, *_KEYS_LONGEST_FIRST) if not word.isascii()])), re.IGNORECASE
)
_EARLIER = re.compile(r"(?<![\w-])[A-Za-z]{1,14}[ ]$")
_PHRASE = re.compile(
    r"(?:passe|kata sandi|kata laluan|mat khau|mật khẩu|كلمة المرور|كلمة السر|رمز عبور|رمز عبور)(?!\w)", re.IGNORECASE
)


def _assigned(text: str, begin: int, end: int, name: str, kind: str) -> Span | None:
    if text.startswith("%", end) and (found := _ENCODED.match(text, end)) and is_secret_under(name, unquote(found["value"]), True):
        return Span(*found.span("value"), "password")
    for pattern in (_ASSIGN, _PAIR):
        match = pattern.match(text, end)
        if match is None:
            continue
        quoted = match["quoted"] is not None
        group = "quoted" if quoted else "bare"
        value = match[group]
        if not quoted:
            value = value.rstrip(".:)]}") if "." in value[-1:] or value[-1:] in ":)]}" else value
        if pattern is _PAIR and kind == "password" and not (_is_odd(value) or len(value) >= 8):
            continue
        if is_secret_under(name, value, quoted) or (not quoted and _is_env_word(text, begin, match, value, kind)):
            start = match.start(group)
            return Span(start, start + len(value), "password")
        if is_login(name, value):
            return Span(match.start(group), match.start(group) + len(value), "password")
    return None


def _is_env_word(text: str, begin: int, match: re.Match[str], value: str, kind: str) -> bool:
    """`DB_PASSWORD=blauwolke` alone on its line: a word, but nothing else can stand there."""
    if (
        kind != "password"
        or not value.isalpha()
        or not 7 <= len(value) <= 40
        or value.lower() in _PLACEHOLDERS
        or not match[0].startswith("=")
    ):
        return False
    line = text[text.rfind("\n", max(0, begin - 40), begin) + 1 : begin] if begin else ""
    return (
        match[0][1] == value[0]
        and re.fullmatch(r"(?:export |set )?[A-Za-z_.-]{0,32}", line) is not None
        and text[match.end() : match.end() + 1] in ("", "\n", "\r")
    )


def _near(text: str, lower: str, begin: int, end: int, name: str, kind: str) -> Iterator[Span]:
    """Values that no sign of assignment joins to their name."""
    if text.rfind("<", max(0, begin - 60), begin) > text.rfind(">", max(0, begin - 60), begin):
        match = _ELEMENT.match(text, end)
        if (
            match
            and (_is_password(match["value"].strip()) if kind == "password" else _is_strong_key(match["value"].strip()))
            and not _is_sentence(match["value"])
        ):
            yield Span(*match.span("value"), "password")
            return
    strict = _is_strong_password if kind == "password" else _is_strong_key
    for pattern, check in (
        (_DEFAULT, lambda value: is_secret_under(name, value, True)),
        (_NEXT_ELEMENT, strict),
        (_COMMA, strict),
        (_PROSE, strict),
        (_CJK if not text[end - 1 : end].isascii() else None, strict),
        (_SPACE, _is_stronger_password if kind == "password" else _is_long_key),
    ):
        match = pattern.match(text, end) if pattern else None
        if match is None:
            continue
        group = "quoted" if "quoted" in match.re.groupindex else "value"
        value = match[group]
        if check(value) and not (pattern is _COMMA and kind == "password" and re.fullmatch(r"[a-z_]+\d?", value)):
            start = match.start(group)
            kept = len(value.rstrip(".,;:)]}>\"'`*_")) if pattern not in (_DEFAULT, _COMMA) else len(value)
            yield Span(start, start + kept, "password")
            return
    if kind == "password":
        yield from _in_table(text, lower, begin, end)
        yield from _before(text, begin)


def _before(text: str, begin: int) -> Iterator[Span]:
    """`hunter2! is my password`, `use hunter2! as the password`."""
    if not text.endswith(" ", 0, begin):
        return
    words = text[max(0, begin - 96) : begin].split()
    for place in range(len(words) - 1, max(0, len(words) - 5), -1):
        if words[place].lower() in _COPULAS:
            value = words[place - 1].strip("\"'`")
            if _is_stronger_password(value):
                start = text.rfind(value, max(0, begin - 96), begin)
                yield Span(start, start + len(value), "password")
            return


def _is_long_key(value: str) -> bool:
    value = value.rstrip(".,;:)")
    return (
        len(value) >= 20
        and _is_strong_key(value)
        and re.fullmatch(r"[\w.~+=-]+|(?=.{0,40}[A-Z])(?=.{0,40}[a-z])[\w+=]{1,39}(?:/[\w+=]{0,39}){1,3}", value) is not None
    )


def _is_sentence(value: str) -> bool:
    return value.count(" ") > 1 or not (_is_odd(value) or len(value) >= 8)


_ROWS = 12


def _in_table(text: str, lower: str, begin: int, end: int) -> Iterator[Span]:
    """The column below a heading: Markdown, CSV, TSV or the output of a database's shell."""
    line_start = text.rfind("\n", max(0, begin - 300), begin) + 1
    line_end = text.find("\n", end, end + 300)
    if line_end < 0 or (begin - line_start >= 300):
        return
    header = text[line_start:line_end]
    mark = next((mark for mark in "|\t,;" if mark in header), "")
    if not mark or len(header.split(mark)) > 24 or (mark in ",;" and (" " in header.strip() or _DIGIT.search(header))):
        return
    column, columns = header[: begin - line_start].count(mark), header.count(mark)
    at = line_end + 1
    for _ in range(_ROWS):
        stop = text.find("\n", at, at + 600)
        row = text[at : stop if stop >= 0 else min(len(text), at + 600)]
        if mark == "|" and row.startswith("+-") and stop >= 0:
            at = stop + 1
            continue
        cells = row.split(mark)
        if len(cells) != columns + 1:
            return
        cell = cells[column].strip(" \"'`*")
        if not re.fullmatch(r"[-:=+ ]*", cell) and _is_strong_password(cell):
            start = at + sum(len(each) + 1 for each in cells[:column])
            start = text.find(cell, start)
            yield Span(start, start + len(cell), "password")
        if stop < 0:
            return
        at = stop + 1


# ---- addresses, commands and calls -----------------------------------------------------------------------------------------

_ADDRESS = re.compile(
    r"""://(?:[^\s/:@'"<>\\]{0,96}:(?P<value>[^\s"'<>\\]{3,128})@(?=[\w.$\[{-])|(?P<token>[A-Za-z0-9_-]{20,255})(?::x-oauth-basic)?@)"""
)
_ORACLE = re.compile(r"(?i)(?:thin|oci|sqlplus|sqlldr)[: ][^\s/@:]{1,64}/(?P<value>[^\s/@\"']{3,128})@")


def _in_addresses(text: str) -> Iterator[Span]:
    at = text.find("://")
    while at >= 0:
        match = _ADDRESS.match(text, at)
        if match and match["token"] and _has_dense_run(match["token"]):
            yield Span(*match.span("token"), "password")
        elif match and match["value"]:
            value, user = match["value"], text[at + 3 : match.start("value") - 1]
            port = re.match(r"\d{1,5}(?:[/?#]|$)", value) and "/" in value
            if not port and not _is_placeholder(value) and (value.lower() != user.lower()) and not value.startswith("//"):
                yield Span(*match.span("value"), "password")
        at = text.find("://", at + 3)
    if "@" in text:
        for at in _places(text, ("thin:", "oci:", "sqlplus ")):
            if (match := _ORACLE.match(text, at)) and not _is_placeholder(match["value"]):
                yield Span(*match.span("value"), "password")


_PGPASS = re.compile(r":(?:\d{4,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:(?P<value>[^\s:]{3,128})(?=\s|$)")
_SEED = re.compile(
    r"(?i)(?:phrase|mnemonic|seed|words)s?(?:[ ]{0,2}(?:is|are|:|=|ist)){0,2}[\s\"'`:]{1,4}(?P<value>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})"
)


def _in_lines(text: str, lower: str) -> Iterator[Span]:
    """`.pgpass`, and the words that open a wallet."""
    for line in _PGPASS.finditer(text):
        if not _is_placeholder(line["value"]) and not line["value"].isdigit():
            yield Span(*line.span("value"), "password")
    for at in _places(lower, ("phrase", "mnemonic", "seed")):
        if match := _SEED.match(text, at):
            yield Span(*match.span("value"), "password")


def _is_placeholder(value: str) -> bool:
    return value.lower() in _PLACEHOLDERS or _TEMPLATE.match(value) is not None or _HOLE.search(value) is not None


_SECRET = r"[\"']?(?P<value>[^\s\"'-][^\s\"']{3,128})"
# A flag and what stands behind it, tried only in a line that names the command before.
_FLAGS = re.compile(r" -(?:[paPwUuN]|-user|-auth|-proxy-user|-pass)")
_FLAGGED = tuple(
    (re.compile(rf"(?:^|[^\w-])(?:{command})"), re.compile(flag))
    for command, flag in (
        (
            r"curl|wget|https?|xh",
            r" -(?:u|-user|a|-auth|-proxy-user|U)[ =]{0,2}[\"']?[^\s:\"'/-][^\s:\"'/]{0,63}:(?P<value>[^\s\"']{3,128})",
        ),
        (r"mysql\w{0,12}|mariadb\w{0,12}", r" -p(?P<value>[^\s\"'-][^\s\"']{3,128})"),
        (r"redis-cli", rf" (?:-a|--pass)[ =]{_SECRET}"),
        (
            r"(?:docker|podman|az|oc|nerdctl|cf|eb) login|twine|helm|skopeo|mongo\w{0,8}|expo|ssh-keygen|keytool|rsync|lftp",
            rf" -[pPN][ =]?{_SECRET}",
        ),
        (
            r"ldap\w{3,8}|sqlcmd|bcp|mosquitto_\w{3}|zip|unzip|7z\w?|rar|isql|influx\w?|cqlsh|impala-shell|snowsql",
            rf" -[wPp][ =]?{_SECRET}",
        ),
        (r"smbclient|smbmap|rpcclient|nmblookup", r" -U[ =]?[\"']?[^\s%\"']{1,64}%(?P<value>[^\s\"']{3,128})"),
    )
)
_COMMANDS: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (tuple(words.split(",")), re.compile(pattern))
    for words, pattern in (
        ("pass", r"pass\s+-p ?[\"']?(?P<value>[^\s\"']{3,128})"),
        ("pass", r"pass:(?P<value>[^\s\"']{4,128})"),
        ("net use", r"(?i)net use\b[^\n]{0,120}?/user:\S{1,64} (?P<value>[^\s\"'/]{4,128})"),
        ("echo ,printf ", r"""(?i)(?:echo|printf)(?:[ ]-\w)?[ ][\"']?(?P<value>[^\s\"'|$]{4,128})[\"']?[ ]{0,2}\|[ ]{0,2}(?:sudo[ ]-S|docker login|passwd|smbpasswd|gh auth|sudo[ ]--stdin|openssl|podman login|helm registry|cryptsetup|kinit)"""),
        ("identified ", r"(?i)identified(?:[ ]with[ ]\w{1,40})?[ ]by[ ]\\{0,3}[\"'](?P<value>[^\s\"'\\]{4,256})"),
        ("pass", r"(?i)password[ ]\\{0,3}'(?P<value>[^\s\"'\\]{4,256})'"),
        ("--", r"(?i)--(?=[a-z])[\w-]{0,24}(?:password|passwd|passphrase|pass|token|secret|api-?key|access-?key|secret-?key|auth)[ =]\\{0,3}[\"']?(?P<value>[^\s\"'\\-][^\s\"'\\]{3,256})"),
        ("pass", r"passwd\b[^\n]{0,80}?-\w{0,4}b\w{0,4} \S{1,80} \S{1,64} (?P<value>[^\s\"']{4,128})"),
        ("pass", r"PASS (?P<value>[^\s\"']{6,128})"),
        ("cred,login,zugangsdaten",
         r"(?i)(?:creds?|credentials|logins?|zugangsdaten)(?:[ ]\w{1,12}){0,2}[ ]{0,2}(?:[:=]|is|are|sind)[ ]{0,2}[\"'`]?[^\s/|:\"'`]{1,64}[\"'`]?[ ]{0,2}[/|:,][ ]{0,2}[\"'`]?(?P<value>[^\s\"'`]{5,128})"),
    )
)  # fmt: skip
_MOST_FLAGS = 24  # in a line
_SAFE_FLAG = re.compile(r"(?i)(?:stdin|file|env|prompt|ask|from|[\w-]+file)\b")


def _in_commands(text: str, lower: str) -> Iterator[Span]:
    passes = list(_places(lower, ("pass",)))
    for words, pattern in _COMMANDS:
        loose = words[0] in ("--", "echo ", "cred") or pattern.pattern.startswith("PASS")
        for at in passes if words[0] == "pass" else _places(lower, words):
            if (match := pattern.match(text, at)) and _is_given(match["value"], loose):
                yield Span(*match.span("value"), "password")
    tried: Counter[int] = Counter()
    for at in [found.start() for found in _FLAGS.finditer(text)]:
        line = max(text.rfind("\n", max(0, at - 300), at) + 1, at - 300)
        tried[line >> 8] += 1
        if tried[line >> 8] > _MOST_FLAGS:
            continue
        for command, flag in _FLAGGED:
            match = flag.match(text, at)
            if match and _is_given(match["value"], loose=False) and command.search(text, line, at):
                yield Span(*match.span("value"), "password")


def _is_given(value: str, loose: bool) -> bool:
    """Whether what a command is given is a password; `loose`: its flag may take other things too."""
    good = _is_strong_password(value) and not value.isalpha() if loose else not (value[0].isdigit() and _TECHNICAL.match(value))
    return bool(good) and not _is_stand_in(value) and not _SAFE_FLAG.match(value)


_CALL = re.compile(
    r"""(?ix)\w{0,24}[ ]{0,2}=?[ ]{0,2}\(\s{0,8}(?:[^\s"'(),]{0,60},\s{0,8}|\\{0,2}["'][^"'\n]{0,120}["'],\s{0,8}){1,3}\\{0,2}["'](?P<value>[^"'\n\\]{4,128})\\{0,2}["']\s{0,8}[,)]"""
)
_CALLS = ("auth", "login", "cred", "connect", "bind")


def _in_calls(text: str, lower: str) -> Iterator[Span]:
    for at in _places(lower, _CALLS):
        match = _CALL.match(text, at)
        if (
            match
            and " " not in match["value"]
            and _is_strong_password(match["value"], 6)
            and not _is_wordy(match["value"].rstrip("!?"))
        ):
            yield Span(*match.span("value"), "password")


# ---- forms whose words alone say what stands in them -----------------------------------------------------------------------

_B58 = "[1-9A-HJ-NP-Za-km-z]"
_BASE32 = r"(?:[A-Z2-7]{16,128}|[a-z2-7]{16,64}|(?:[A-Z2-7]{4}[ -]){3,15}[A-Z2-7]{4}|(?:[a-z2-7]{4}[ -]){3,15}[a-z2-7]{4})"


def _is_seed(value: str) -> bool:
    bare = re.sub("[ -]", "", value)
    return len(bare) >= 16 and entropy(bare) >= 3.0 and (_DIGIT.search(bare) is not None or bare.isupper())


def _is_pair(value: str) -> bool:
    _user, _, secret = value.partition(":")
    return _is_strong_password(secret, 6) and not _is_wordy(secret)


def _is_loose(value: str) -> bool:
    return not _is_stand_in(value) and not _SAFE_FLAG.match(value)


# Words, the form that stands where one of them does, and what its value must be.
_FORMS: tuple[tuple[tuple[str, ...], re.Pattern[str], Callable[[str], bool]], ...] = tuple(
    (tuple(words.split(",")), re.compile(pattern), check)
    for words, pattern, check in (
        ("prv", rf"prv(?P<value>{_B58}{{90,112}})(?![A-Za-z0-9])", _is_random),
        ("otp,2fa,mfa,authenticator,seed", rf"(?i:otp|2fa|mfa|authenticator|seed)(?:[ _-]?(?i:secret|seed|key|code|token|app|backup|setup|manual|entry|base32)){{0,3}}[\"'`]{{0,2}}(?:[ ]?(?i:is|are|with|the|for [\w.]{{1,20}}|:|=|=>|,|\()[ ]?){{0,3}}[ ]{{0,2}}[\"'`]{{0,2}}(?P<value>{_BASE32})(?![A-Za-z0-9+/=_-])", _is_seed),
        ("otpauth:", r"otpauth://[^\s\"']{1,200}?secret=(?P<value>[A-Za-z2-7]{16,128})", bool),
        ("pwd={,password={", r"(?i)(?:pwd|password)=\{(?P<value>[^{}\n]{3,128})\}", lambda value: _is_strong_password(value, 6)),
        ("wifi:", r"(?i)wifi:[^\n]{0,100}?;?p:(?P<value>[^;\n]{4,64});", _is_loose),
        ("storepass,keypass", r"(?i)(?:store|key)pass(?:word)?[ =][\"']?(?P<value>[^\s\"'-][^\s\"']{3,128})", _is_loose),
        ("echo ,printf ", r"(?i)(?:echo|printf)(?:[ ]-\w{1,3})?[ ][\"']?[\w.@-]{1,40}:(?P<value>[^\s\"'|\\]{4,128})(?:\\n)?[\"']?[ ]{0,2}\|[ ]{0,2}(?:sudo[ ])?(?:/usr/s?bin/)?(?:ch|ht)passwd", _is_loose),
        ("chpasswd", r"(?i)chpasswd[ ]{0,2}<<<[ ]{0,2}[\"']?[\w.@-]{1,40}:(?P<value>[^\s\"']{4,128})", _is_loose),
        ("securestring", r"(?i)securestring[ ]+(?:-string[ ]+)?(?:-\w{1,14}[ ]+){0,2}[\"'](?P<value>[^\"'\n]{4,128})[\"']", _is_loose),
        ("networkcredential", r"(?i)networkcredential\([ ]?[^\"',()\n]{0,3}[\"']?[^\"',()\n]{1,60}[\"']?,[ ]?@?[\"'](?P<value>[^\"'\n]{4,128})[\"']", _is_loose),
        ("session(", r"(?i)session\(\s{0,4}\{[^{}]{0,200}?\bsecret[\"']?:[ ]?[\[]?[\"'`](?P<value>[^\"'`\n]{4,128})[\"'`]", _is_loose),
        ("pin", r"(?:(?<![A-Za-z])PIN|(?<![A-Za-z])[Pp]in)(?:[- ](?i:code|number|nummer))?(?:[ ](?:for|to|of|on|für)[ ](?:[\w'-]{1,20}[ ]){1,4})?(?:[ ]{0,2}(?i:is now|is still|is|was|ist|lautet|est|es)[ ]:?|(?<=PIN)[ ]?[:=][ ]?|(?<=code)[ ]?[:=]?[ ]?)[ ]?[\"'`*]{0,2}(?P<value>\d{4,8})(?![\w.])", bool),
        ("passcode,cvv,cvc", r"(?i)(?:passcode|cvv2?|cvc2?)(?:[ ](?:for|to|of|on)[ ](?:[\w'-]{1,20}[ ]){1,4})?[ ]?(?:is|:|=|ist)?[ ][\"'`*]{0,2}(?P<value>\d{3,8})(?![\w.])", bool),
        ("log in,login,sign in,signin,account,user,ssh,access,credential", r"(?i)(?:log[ ]?in|sign[ ]?in|account|user(?:name)?|ssh|access|credentials?)\b(?:[ :]{1,2}[\w.@-]{1,24}){0,4}?[ :]{1,2}[\"'`]?[\w.@-]{2,48}[\"'`]?[ ](?:/|\||and|with)[ ](?:pw[ ])?[\"'`]?(?P<value>[^\s\"'`/|]{6,64})", _is_stronger_password),
        ("__", r"__(?:COM|ORG|IO|NET|DEV|CO|AI|APP|CLOUD|DE)(?:__\w{1,30})?[\"']?[=:][ ]?[\"']?(?P<value>[^\s:\"'=]{1,64}:[^\s\"']{6,128})", _is_pair),
        ("bundle config,http-basic.", r"(?:bundle config|http-basic\.)(?:[ ]--?\w{2,8}|[ ]set)*+[ ]?[\w./:-]{3,80}[ ][\"']?(?P<value>[^\s:\"']{1,64}[: ][\"']?[^\s\"']{6,128})", lambda value: _is_pair(value.replace(" ", ":", 1))),
        ("login,auth,activate,register,connect", r"(?i)(?:login|auth|activate|register|connect|authenticate)(?:[ ]--?[\w-]{1,24}(?=[ =])|[ ][a-z]{2,14}(?=[ ])){0,4}[ =][\"']?(?P<value>[A-Za-z0-9_-]{24,80})(?![\w./:@-])", _is_opaque),
        ("pass,pwd,pw", r"(?i)(?<=[-a-z])(?:pass|password|passwd|passphrase|pass-phrase|pwd|pw)[ =:][\"']?(?P<value>[^\s\"'-][^\s\"']{3,128})", lambda value: _is_given(value, loose=True)),
    )
)  # fmt: skip
_WALLET = re.compile(rf"(?<![A-Za-z0-9+/=_-])(?:5[HJK]{_B58}{{49}}|[KLc]{_B58}{{51}})(?![A-Za-z0-9+/=_-])")
_HEX_PAIR = re.compile(r"(?:=|\.[a-z]{2,6}[\"']?[ :=]{1,3})[\"']?(?P<value>[0-9a-f]{8,64}:[0-9a-f]{8,64})(?![\w:])")
_OPTION = re.compile(r"(?:^|[\s\"'\[,])-{1,2}[\w-]{0,24}$")
_JWK = re.compile(r"""(?:d|p|q|dp|dq|qi|k)\\{0,3}["']\s{0,3}:\s{0,3}\\{0,3}["'](?P<value>[\w-]{20,2048})""")


def _in_forms(text: str, lower: str) -> Iterator[Span]:
    for words, pattern, check in _FORMS:
        option = words[0] == "pass"
        for at in _places(lower, words):
            if option and not _OPTION.search(text, max(0, at - 26), at):
                continue
            if (match := pattern.match(text, at)) and check(match["value"]):
                yield Span(*match.span("value"), "password")
    for match in _WALLET.finditer(text):
        if _is_random(match[0]):
            yield Span(*match.span(), "password")
    if ":" in text:
        for match in _HEX_PAIR.finditer(text):
            if all(_mixed(part) for part in match["value"].split(":")):
                yield Span(*match.span("value"), "password")
    if "kty" in text:
        for quote in "\"'":
            for at in _places(text, tuple(f"{quote}{name}" for name in "dpqk")):
                if (match := _JWK.match(text, at + 1)) and entropy(match["value"][:128]) >= 3.5:
                    yield Span(*match.span("value"), "password")


_ARGUMENT = re.compile(r"""\(\s{0,4}["'`](?P<value>[A-Za-z0-9_-]{24,80})["'`]\s{0,4}[,)]""")
_CONSTRUCTOR = re.compile(
    r"(?:(?i:client|api|sdk|service|connection|connector|init|initialize|configure|setup|authenticate|login|tracker|analytics|gateway|mailer"
    r"|geocoder|provider|auth|connect|identify|activate)|\bnew[ ](?:\w+\.)?[A-Z]\w{1,30})$"
)
_NO_CLIENT = re.compile(
    r"(?i)(?:id|guid|hash|digest|sha\d*|md5|commit|checksum|etag|version|error|exception|regexp?|string|url|date|buffer|test|file|name|image|blob)$"
)


def _in_constructors(text: str) -> Iterator[Span]:
    """`new Client("…")`, `sdk.init('…')`: an opaque value as the first argument of what reaches a service."""
    for at in _places(text, ("(",)):
        if match := _ARGUMENT.match(text, at):
            before = text[max(0, at - 48) : at]
            if _CONSTRUCTOR.search(before) and not _NO_CLIENT.search(before) and _is_opaque(match["value"]):
                yield Span(*match.span("value"), "password")


_LITERAL = r"""(?:"[^"\n\\]{0,200}"|'[^'\n\\]{0,200}')"""
_CHAIN = re.compile(rf"""{_LITERAL}(?:\s{{0,12}}(?:\+|\.{{1,2}}|&|\|\||\\)?\s{{0,12}}[bfru]?{_LITERAL}){{1,12}}""")
_PARTS = re.compile(_LITERAL)
_ASSIGNED_TO = re.compile(
    r"([A-Za-z_][\w.-]{1,60})[\"'\])]{0,2}(?:[ ]?:[ ]?\w{1,20})?[ ]{0,4}(?::=|=>|=|:)\s{0,12}\(?\s{0,12}[bfru]?$"
)


def _in_chains(text: str) -> Iterator[Span]:
    """A secret cut into literals that the source joins: each of them."""
    for match in _CHAIN.finditer(text):
        literals = [(match.start() + each.start() + 1, each[0][1:-1]) for each in _PARTS.finditer(match[0])]
        joined = "".join(literal for _, literal in literals)
        named = _ASSIGNED_TO.search(text, max(0, match.start() - 96), match.start())
        found = _FORMAT.search(joined) or _ISSUED.search(joined)
        if (named and is_secret_under(named[1], joined, True)) or (
            found and len(found[0]) * 2 > len(joined) and (_is_issued(found) if "issuer" in found.re.groupindex else _is_key(found))
        ):
            for start, literal in literals:
                if literal:
                    yield Span(start, start + len(literal), "password")


# ---- cards and people --------------------------------------------------------------------------------------------------------

_CARD = re.compile(
    r"(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6011|64[4-9]\d|65\d{2}|62\d{2}|35\d{2})\d{12}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}"
)  # by issuer: Visa, Mastercard, Discover, UnionPay, JCB; American Express; Diners
_CARDS = re.compile(r"[2-6](?<![\w.-].)\d{3}([ .-]?)\d{4,6}\1\d{4,5}(?:\1\d{3,4})?(?![\w-]|\.\d)")
_EMAIL = re.compile(r"(?<![\w.%+-])[\w%+-][\w.%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")
_PHONE_PLUS = re.compile(r"\+(?<![\w+.-].)\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,6}(?![\w-]|\.\d)")
_PHONE = re.compile(r"[(\d](?<![\w+.-].)(?:\d{3}\) ?\d{3}[ .-]|\d{2}[-.]\d{3}[-.])\d{4}(?![\w-]|\.\d)")


def passes_luhn(digits: str) -> bool:
    """The checksum of card numbers (ISO/IEC 7812-1)."""
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


def _cards(piece: Text) -> Iterator[Span]:
    for match in _CARDS.finditer(piece.text):
        digits = re.sub(r"\D", "", match[0])
        if digits.isascii() and len(set(digits)) > 1 and _CARD.fullmatch(digits) is not None and passes_luhn(digits):
            yield Span(*match.span(), "card")


def _emails(piece: Text) -> Iterator[Span]:
    text, done = piece.text, 0
    for at in _places(text, ("@",)):
        start = at
        while start > done and at - start < 64 and (text[start - 1].isalnum() or text[start - 1] in "_.%+-"):
            start -= 1
        if start < at and (match := _EMAIL.match(text, start)):
            yield Span(*match.span(), "email")
            done = match.end()


def _phones(piece: Text) -> Iterator[Span]:
    for pattern in (_PHONE_PLUS, _PHONE):
        for match in pattern.finditer(piece.text):
            if 8 <= sum(letter.isdigit() for letter in match[0]) <= 15:
                yield Span(*match.span(), "phone")
