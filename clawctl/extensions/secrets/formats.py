# ruff: noqa: E501 - expressions and templates stay lines
"""Finds keys by format: formats that issuers document, and the general form of keys from any issuer."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from clawctl.extensions.secrets.text import BLOBS, Anchors, Span, Text, regex, tried_at
from clawctl.extensions.secrets.values import EXAMPLE, RUN, UUID_ALONE, is_dense, is_drawn, is_random, is_strong_key, mixed, turns
from clawctl.extensions.secrets.vocabulary import IDS, KEY_PARTS, NAMES_OF_IDS, PROVIDERS

_W = r"[A-Za-z0-9_-]"
_FORMATS = "|".join(
    (
        # models
        rf"sk-(?:proj-|ant-|svcacct-|admin-|or-v1-)?{_W}{{20,400}}", rf"claw-{_W}{{20,400}}",
        r"(?:gsk_|xai-|pplx-|nvapi-|tgp_v1_|tvly-|csk-|fw_|r8_|fc-|jina_|lsv2_(?:pt|sk)_|ABSK|bedrock-api-key-)[\w+/=-]{20,300}",
        r"hf_[A-Za-z0-9]{30,40}", r"api_org_[A-Za-z0-9]{34}",
        # clouds
        r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}", r"AIza[\w-]{35}", r"(?:GOCSPX-|ya29\.)[\w.-]{20,400}", r"LTAI[A-Za-z0-9]{16,24}",
        r"AKID[A-Za-z0-9]{32}", r"[A-Za-z0-9]{60,80}AZDO[A-Za-z0-9]{4}", r"K00\d[A-Za-z0-9+/]{27}", r"eyJhIjo[gi][A-Za-z0-9+/=]{100,400}", r"amzn\.mws\.[0-9a-f-]{36}", r"da2-[a-z0-9]{26}", r"[A-Za-z0-9+/]{42}\+ACR[A-Za-z0-9]{6}", r"[A-Za-z0-9+/]{76}(?:\+ASt|ACDb|AzCa|AzFu|APIM|AIoT|\+ABa|\+AMC|AzSe)[A-Za-z0-9+/]{4,7}(?:==|[AQgw]==)?",
        r"[01]\.A[\w-]{50,300}\.Ag[\w-]{100,800}", r"(?:eu01xx[a-f0-9]{26}|[a-f0-9]{32})(?:FFFF)?[a-f0-9]{0,4}NRAL", r"(?:AA[0-9a-f]{40}|eu01xx[0-9a-f]{36})-NRMA", r"YC[A-Za-z0-9_-]{38}", r"AQVN[\w-]{35,38}", r"t1\.[\w-]{10,300}=*\.[\w-]{80,90}",
        r"[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}", r"(?:dop|doo|dor)_v1_[a-f0-9]{64}",
        r"(?:HRKU-[A-Za-z0-9_-]{36,64})", r"(?:fm1[ar]_|fm2_|fo1_)[A-Za-z0-9+/_-]{40,800}={0,3}", r"FlyV1[ ]?fm\d_[A-Za-z0-9+/]{40,800}",
        # code and packages
        r"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{22,255}", r"(?:npm_|dckr_pat_|dckr_oat_|rubygems_|pypi-AgE|pypi-|sbp_|sb_secret_|CLOJARS_)[\w-]{24,300}",
        r"gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas|ffct|rtr)-[\w.-]{20,300}", r"GR1348941[\w-]{20}", r"AKCp[A-Za-z0-9]{60,80}", r"cmVmd[A-Za-z0-9]{59}",
        r"(?:ATATT3|ATBB|ATCTT3|ATSTT3)[\w=-]{24,300}", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{50,80}", r"sha256~[\w-]{43}", r"ops_eyJ[A-Za-z0-9+/=]{60,600}",
        r"(?:sqp_|squ_|sqa_)[a-f0-9]{40}", r"s-s4t2(?:ud|af)-[a-f0-9]{64}", r"CMVM[\w-]{40,60}", r"endr\+[A-Za-z0-9-]{16}", r"oy2[a-z0-9]{43}", r"sgp_[A-Za-z0-9_]{40,60}", r"bkua_[a-z0-9]{40}", r"CCIPAT_[\w]{40,80}", r"vercel_[A-Za-z0-9_]{24,60}",
        r"(?:shippo|duffel|lob)_(?:live|test)_[\w=-]{35,60}", r"(?:live|test)_[a-f0-9]{35}", r"A3-[A-Z0-9]{6}-[A-Z0-9-]{20,40}",
        # money
        r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,247}", r"whsec_[A-Za-z0-9+/=]{24,128}", r"sq0(?:csp|atp|idp)-[\w-]{22,60}", r"EAAA[\w-]{22,64}", r"(?:pi|seti)_[A-Za-z0-9]{14,30}_secret_[A-Za-z0-9]{20,40}", r"FLWPUBK(?:_TEST)?-[A-Za-z0-9]{20,40}-X",
        r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}", r"EZ[AT]K[A-Za-z0-9]{54}", r"FLWSECK(?:_TEST|_LIVE)?-[A-Za-z0-9]{12,40}(?:-X)?",
        r"access_token\$(?:production|sandbox)\$[a-z0-9]{16}\$[a-f0-9]{32}", r"access-(?:sandbox|development|production)-[0-9a-f-]{36}", r"rzp_(?:live|test)_[A-Za-z0-9]{14,24}",
        # chat and mail
        r"xox[abdposre](?:\.xox[a-z])?-[A-Za-z0-9%-]{10,500}", r"xapp-\d-[A-Za-z0-9-]{20,200}", r"[MNO][A-Za-z0-9_-]{23,27}\.[\w-]{6,7}\.[\w-]{27,45}",
        r"SG\.[\w=.-]{60,72}", r"md-[\w-]{22}", r"AAAA[\w-]{7}:[\w-]{130,180}", r"\d{12,18}\|[\w-]{20,40}", r"_\|WARNING:-DO-NOT-SHARE-THIS[^\s]{60,1200}", r"key-[a-f0-9]{32}", r"[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8}", r"[a-f0-9]{32}-us\d{1,2}", r"A{20,24}(?=[A-Za-z0-9%]{0,60}[a-z])(?=[A-Za-z0-9%]{0,60}\d)[A-Za-z0-9%]{60,120}", r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}",
        r"\d{8,10}:AA[\w-]{33}", r"SK(?:[a-f0-9]{32}|[A-Za-z0-9]{32})", r"EAA[A-Z][A-Za-z0-9]{80,250}", r"sl\.(?:u\.)?[\w=-]{130,1200}", r"s\.[A-Za-z0-9]{24}", r"00D[A-Za-z0-9]{12,15}![\w.]{90,120}", r"5Aep861[\w.=]{60,120}", r"3MVG9[\w.+/=]{60,200}", r"KEY01[0-9A-F]{32}_[A-Za-z0-9]{22}", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{20,30}",
        r"(?:https?://)?hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9+/_]{30,80}", r"(?:https?://)?(?:\w{1,8}\.)?discord(?:app)?\.com/api/webhooks/\d{16,20}/[\w-]{60,80}",
        r"(?:https?://)?(?:[\w-]{1,40}\.)?webhook\.office\.com/webhookb2/[a-z0-9@-]{20,90}/IncomingWebhook/[a-z0-9]{32}/[a-z0-9-]{36}",
        # tools and data
        r"(?:shpat_|lin_api_|lin_oauth_|figd_|figo_|figdh_|ntn_|secret_(?=\w{43})|glsa_|glc_|aio_|phc_|phx_|pnu_|tfp_|rdme_|ico-|p8e-|pat-na\d-|fio-u-|tk-us-)[\w=+/-]{24,400}",
        r"(?:hvs|hvb|hvr)\.[\w-]{24,400}", r"[a-z]{2,10}_[a-z]{2,8}\.[a-f0-9]{8}\.[\w-]{40,120}", r"[a-z]{2,12}_v\d_[A-Za-z0-9_-]{32,120}", r"(?<![+/=])u\+[A-Za-z0-9_-]{18}(?![A-Za-z0-9+/_-])", r"(?:tskey-[a-z]{2,12}-|dapi|dkea|dose|NRAK-|NRII-|NRJS-|NRRA-|sntrys_|sntryu_|PMAK-|CFPAT-|pul-|HRKU-)[\w=+/-]{19,500}",
        r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,60}", r"pscale_(?:pw|tkn|oauth)_[\w=.-]{32,64}", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}", r"sm_[aps]at_[A-Za-z0-9]{16}",
        r"sk\.eyJ[\w-]{20,300}\.[\w-]{20,40}", r"(?i:dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64})", r"[12]/\d{12,20}(?:/\d{12,20})?:[a-f0-9]{32}", r"hca[a-z]k_01[a-z0-9]{50,64}", r"1000\.[a-f0-9]{32}\.[a-f0-9]{32}", r"pat\.[A-Za-z0-9_-]{22}\.[a-f0-9A-F]{24}\.[A-Za-z0-9]{20}", r"VF\.(?:(?:DM|WS)\.)?[a-fA-F0-9]{24}\.[A-Za-z0-9]{16}", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk",
        r"eyJrIjoi[A-Za-z0-9+/=]{60,400}", r"AGE-SECRET-KEY-1[A-Z0-9]{50,60}", r"(?:sc|ext|scauth|authress)_[a-z0-9]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[\w+/=-]{30,120}",
        r"API-[A-Z0-9]{26,36}", r"[a-z]{2,10}(?:at|pat|tok|key|sk)_[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}", r"secret-(?:live|test)-[\w=-]{36}", r"nsec1[a-z0-9]{58}", r"6P[A-Za-z0-9]{56}", r"ak[a-z]{2}-[a-z0-9]{16}-[a-z0-9]{16}", r"na1\.[A-Za-z0-9+/]{100}", r"[A-Za-z0-9+/]{22}==:[A-Za-z0-9]{32}", r"[A-Za-z0-9]{64}_[A-Za-z0-9]{4}_[a-f0-9-]{36}", r"pk_\d{6,9}_[A-Z0-9]{32}", r"(?:sec|pub|sub)-c-[a-z0-9]{8}-(?:[a-z0-9]{4}-){3}[a-z0-9]{12}",
        r"(?:https?://)?hooks\.zapier\.com/hooks/catch/\d{4,12}/\w{5,32}", r"cloudinary://\d{10,20}:[\w-]{20,40}(?:@[\w-]{1,40})?", r"00[A-Za-z0-9_-]{40}", r"4b1d[A-Za-z0-9]{38}", r"(?:sdk|api|mob)-[a-z0-9]{8}-(?:[a-z0-9]{4}-){3}[a-z0-9]{12}",
        r"1//0[\w-]{40,200}", r"cio[A-Za-z0-9]{32}", r"npg_[A-Za-z0-9]{12,16}", r"[\w-]{6}\.[\w-]{6}:[\w-]{40,50}", r"2[A-Za-z0-9]{26}_[A-Za-z0-9]{21}", r"hcp\.[\w-]{50,300}", r"A21AA[\w-]{80,120}", r"AQE[\w+/]{40,120}-[\w+/]{30,80}=-[\w!-~]{8,32}", r"mfa\.[\w-]{60,120}", r"oauth:[a-z0-9]{30}", r"BQ[\w-]{120,400}", r"AQ[VX][\w-]{150,400}", r"IGQV[\w-]{80,300}", r"act\.[A-Za-z0-9]{40,100}!\d[\w.]{3,12}",
        r"(?:xaat-|waka_|luma-)[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}(?:-[a-f0-9]{20,64})?", r"[a-f0-9]{24}:[a-f0-9]{64}", r"mlsn\.[a-f0-9]{64}", r"token-[a-z0-9]{5,10}:[A-Za-z0-9]{40,64}", r"(?=[a-z]{0,5}\d)(?=\d{0,5}[a-z])[a-z0-9]{6}\.(?=[a-z]{0,15}\d)[a-z0-9]{16}(?![A-Za-z0-9.])", r"tr_(?:prod|dev|stg|preview)_[A-Za-z0-9]{18,30}",
        # Bodies of private keys without their first line (PKCS 8, PKCS 1, SEC 1, OpenSSH)
        r"MII[A-Za-z0-9]{2,5}IBA(?:DANBgkqhkiG9w0BAQEFAASC|AKCA)[A-Za-z0-9+/=]{40,4000}", r"MHcCAQEE[A-Za-z0-9+/=]{60,200}", r"MI[GH][A-Za-z0-9]AgEAMB[A-Za-z0-9+/=]{60,300}",
        r"MC4CAQAwBQYDK2V[A-Za-z0-9+/=]{40,60}", r"b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=]{40,4000}",
    )
)  # fmt: skip
FORMAT = regex(rf"(?<![A-Za-z0-9])(?=[A-Za-z0-9_])(?:{_FORMATS})")
_SOLID = regex(r"[A-Za-z0-9]{6}")
_WHOLLY = regex(
    r"(?:[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8}|[a-f0-9]{32}-us\d|key-|SK[a-f0-9]|AIza|hf_|api-|sdk-|mob-|live_|test_|4b1d|API-|oy2)"
)
_LONGER = regex(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})*={0,2}")

_WRAPPED = regex(
    r"\r?\n[ \t>|]{0,8}(?P<run>[A-Za-z0-9_-]{16,512})={0,2}(?=[ \t]*(?:\r?\n|$))"
)  # a continuation that a mail client or a terminal has wrapped


@tried_at(BLOBS, to_value_end=False)
def keys(piece: Text) -> Iterator[Span]:
    text = piece.text
    for start, end in piece.blobs:
        if not _SOLID.search(text, start, end) or (end - start <= _LONGEST_KNOWN and not _may_hold_key(text[start:end])):
            continue
        for match in ISSUED.finditer(text, start, end):
            if is_issued(match):
                yield Span(*match.span(), "api_key")
        for match in FORMAT.finditer(text, start, end):
            if is_key(match):
                longer = _LONGER.match(text, match.end())  # a format may have grown since its rule was written
                end_of_key = longer.end() if longer else match.end()
                wrapped = _WRAPPED.match(text, end_of_key)
                if (
                    _ACCESS_ID.match(match[0])
                    and (other := _SECRET_OF_ID.search(text, end_of_key, end_of_key + 120))
                    and is_random(other[0])
                ):
                    yield Span(*other.span(), "api_key")
                yield Span(match.start(), wrapped.end() if wrapped and is_random(wrapped["run"]) else end_of_key, "api_key")


_LONGEST_KNOWN = 96  # characters


@lru_cache(maxsize=4096)
def _may_hold_key(blob: str) -> bool:
    """Whether a run holds a key, except for what is beside it. Runs such as paths recur."""
    return FORMAT.search(blob) is not None or ISSUED.search(blob) is not None


_ACCESS_ID = regex("AKIA|ASIA")
_SECRET_OF_ID = regex(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=_-])")  # of Amazon


# Unique prefixes: such a key is recognised even directly after a letter, or if its line was broken soon after the prefix.
_PREFIXES = (
    "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "sk-proj-", "sk-ant-", "sk-svcacct-", "sk-or-v1-", "glpat-", "gldt-", "glrt-",
    "xoxb-", "xoxp-", "xapp-", "hf_", "npm_", "dckr_pat_", "pypi-AgE", "hvs.", "dop_v1_", "shpat_", "sk_live_", "sk_test_", "rk_live_",
    "whsec_", "AIza", "glsa_", "lin_api_", "AKIA", "ASIA", "claw-", "ATATT3", "nvapi-", "gsk_", "xai-", "pplx-", "sbp_", "ya29.",
)  # fmt: skip
_MARKED = Anchors(*map(str.lower, _PREFIXES))
_GLUED = regex(rf"(?:{_FORMATS})")
_BROKEN = regex(
    rf"(?:{'|'.join(map(re.escape, _PREFIXES))})(?P<first>[A-Za-z0-9_-]{{0,80}})\\?\r?\n[ \t>|]{{0,16}}(?P<rest>[A-Za-z0-9_-]{{6,200}})(?![\w:(=])"
)


@tried_at(_MARKED, to_value_end=False)
def marked_keys(piece: Text) -> Iterator[Span]:
    """Find keys with a unique prefix that follow a letter directly (`\\x1b[0mghp_…` without its escape) or are broken into two
    lines.
    """
    text = piece.text
    for at in _MARKED.positions(piece):
        before = text[at - 1 : at].isalnum()
        if before and (glued := _GLUED.match(text, at)) and is_key(glued):
            yield Span(*glued.span(), "api_key")
        elif not before and (broken := _BROKEN.match(text, at)) and _is_one(broken):
            yield Span(*broken.span(), "api_key")


def _is_one(broken: re.Match[str]) -> bool:
    """Whether both lines form one key: the second mixes letters and digits, and the whole looks random."""
    joined, rest = broken["first"] + broken["rest"], broken["rest"]
    return len(joined) >= 16 and mixed(rest) and is_drawn(joined) and turns(rest) * 6 >= len(rest)


def is_key(match: re.Match[str]) -> bool:
    key = match[0]
    if key[0] != "_" and EXAMPLE.search(key):
        return False
    if _ID_BEFORE.search(match.string, max(0, match.start() - 40), match.start()):
        return False
    if _WHOLLY.match(key) and match.string[match.end() : match.end() + 1].isalnum():
        return False
    return (
        "/" in key[:60]
        or key[0] == "_"
        or (is_drawn(key) and (key[:2] != "00" or is_random(key.replace("-", "").replace("_", ""))))
    )


# A key of any issuer: short name parts, then a body that does not look like a name. Ids have the same form, so their names are
# listed.
ISSUED = regex(
    r"(?<![A-Za-z0-9_-])(?:(?P<issuer>(?:[a-z][a-z0-9]{1,11}[_-]){1,3}+)(?P<body>[A-Za-z0-9][A-Za-z0-9_-]{19,512})|(?P<upper>[A-Z][A-Z0-9]{1,7}[_-])(?P<run>[A-Za-z0-9]{24,128}))={0,2}(?![A-Za-z0-9])"
)
# An entity tag, and the public parts of a JSON Web Key.
_ID_BEFORE = regex(
    r"""(?i)(?:(?<![A-Za-z0-9])W/\\?["']|e-?tag\\?["']?[ ]?[:=][ ]?\\?["']{0,2}|public_?key["']?[ ]?[:=][ ]?["']?|sha\d{3}[=:-]|site-verification=|["'](?:kid|x5t|x5t#S256|jti|n|x|y)\\?["']\s{0,2}:\s{0,2}\\?["'])$"""
)
_KEYED = ("key", "keys", "token", "secret", "pat")
_MODES = frozenset(("live", "test", "prod", "dev", "sandbox"))


def is_issued(match: re.Match[str]) -> bool:
    if _ID_BEFORE.search(match.string, max(0, match.start() - 40), match.start()):
        return False
    parts, body = re.split("[_-]", (match["issuer"] or match["upper"])[:-1].lower()), match["body"] or match["run"]
    if parts[0] in IDS or (len(parts) > 1 and not _MODES.issuperset(parts[1:]) and not IDS.isdisjoint(parts)):
        return False
    if EXAMPLE.search(match[0][:200]) or parts[0] == "pk":  # `pk` marks a public key
        return False
    keyed = not KEY_PARTS.isdisjoint(parts) or any(part.endswith(_KEYED) for part in parts)
    if UUID_ALONE.fullmatch(body):
        return keyed
    run = max(RUN.findall(body), key=len, default="")
    if run != body and not keyed and _DIGEST.fullmatch(run):  # a name with a digest: the key of a cache or an artefact
        return False
    if is_random(run) or _is_restless(run):
        return len(body) >= 20 and len(run) >= 16
    return (
        len(run) >= 24
        and run.islower()
        and is_dense(run)
        and (keyed or (len(run) >= 32 and match[0][sum(map(len, parts)) + len(parts) - 1] == "_"))
    )


def _is_restless(run: str) -> bool:
    """Whether the run has only short runs of letters, although some of them may be words."""
    digits = sum(map(str.isdigit, run))
    return len(run) >= 20 and digits >= 3 and turns(run[:128]) * 4 >= len(run[:128]) and _LONG_WORD.search(run) is None


_LONG_WORD = regex(r"[a-z]{6}")
_DIGEST = regex(r"(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})")


# The name of a provider and its value: keys of most providers have no format of their own.
_OPAQUE = regex(r"(?<![A-Za-z0-9+/_.~-])[A-Za-z0-9][A-Za-z0-9+/_.~-]{14,200}={0,2}")
_SIGN = regex("[=:,>|]")
_SET_TO = regex(r"""(?<![A-Za-z])([A-Za-z][\w.-]{1,48}+)["'`\])]{0,2}[ \t]{0,4}(?::=|=>|->|[=:,>]|\|\|)[ \t"'`=(]{0,5}$""")
_PART = regex(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@tried_at(BLOBS, to_value_end=False)
def of_providers(piece: Text) -> Iterator[Span]:
    """Find an opaque value under the name of a key issuer: `airtable = "…"`, `MY_DATADOG: …`."""
    for start, end in piece.blobs:
        for match in _OPAQUE.finditer(piece.text, start, end):
            at = match.start()
            if RUN.search(match[0]) is None:
                continue
            named = _SIGN.search(piece.text, max(0, at - 7), at) and _SET_TO.search(piece.text, max(0, at - 64), at)
            if named and is_provider(named[1]) and is_opaque_under(match[0]):
                yield Span(*match.span(), "api_key")


def is_opaque_under(value: str) -> bool:
    """Whether a value under a provider's name is a key: letters and digits in random order, a UUID, or hex."""
    if UUID_ALONE.fullmatch(value):
        return True
    bare = value.rstrip("=")
    return len(bare) >= 15 and is_strong_key(value) and max(map(len, RUN.findall(value)), default=0) >= 12


@lru_cache(maxsize=4096)
def is_provider(name: str) -> bool:
    parts = [part.lower() for part in _PART.findall(name[-48:])]
    if not parts or (parts[-1] in NAMES_OF_IDS and parts[-2:] != ["api", "hash"]):
        return False
    joined = [*parts, *(first + second for first, second in pairwise(parts))]
    return not PROVIDERS.isdisjoint(joined)
