# ruff: noqa: E501 - expressions and templates stay lines
"""Lines from templates: many formats in many contexts, with and without a secret, in parts that share no template.

`labelled_tuned.txt` was written beside the rules. `labelled_held_out.txt` was written before them, by the same author. `labelled_seen.txt`,
`labelled_seen_second.txt` and `labelled_fresh.txt` are by three authors who had read neither the rules nor the other files. The failures of
all parts have been read since, and rules were changed for their classes, not for one of their lines. Each line of a file is one template, below the heading `# secret` or `# harmless`:

    <<NAME>>            a drawn secret, which must be removed completely
    <<NAME|FORM>>       the same in another form (`FORMS`)
    <NAME>              drawn text that is not a secret
    ⏎                   a line break

No value is a live credential, and none is stored: each is assembled when its line is made.
"""

import base64
import html
import random
import re
import string
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from urllib.parse import quote

from scripts.benchmarks.labelled_lines import SECRETS, Line, draw_password, failing_card

HALVES = ("tuned", "held_out")
SEEN, SEEN_SECOND, FRESH = "seen", "seen_second", "fresh"  # in the order of their authors
_ALNUM = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"
_UPPER = string.ascii_uppercase + string.digits
_LOWER = string.ascii_lowercase + string.digits
_URL64 = _ALNUM + "-_"
_PLACE = re.compile(r"<<(\w+)(?:\|(\w+))?>>|<(\w+)>")
_SEED_WORDS = [
    "abandon",
    "ability",
    "able",
    "about",
    "above",
    "absent",
    "absorb",
    "abstract",
    "absurd",
    "abuse",
    "access",
    "accident",
    "account",
    "accuse",
    "achieve",
    "acid",
    "acoustic",
    "acquire",
    "across",
    "act",
    "action",
    "actor",
    "actress",
    "actual",
    "adapt",
    "add",
    "addict",
    "address",
    "adjust",
    "admit",
    "adult",
    "advance",
    "advice",
    "aerobic",
    "affair",
    "afford",
    "afraid",
]
Draw = Callable[[random.Random], str]


def some(alphabet: str, length: int) -> Draw:
    return lambda draw: "".join(draw.choice(alphabet) for _ in range(length))


def key(*parts: str | tuple[str, int]) -> Draw:
    """An issuer's format: fixed pieces, and pairs of an alphabet and a number of its characters."""
    return lambda draw: "".join(part if isinstance(part, str) else some(*part)(draw) for part in parts)


def base64_of(length: int) -> Draw:
    return lambda draw: base64.b64encode(draw.randbytes(length)).decode()


def _dotted(draw: random.Random) -> str:
    return ".".join([some(_ALNUM, draw.randrange(3, 7))(draw) + str(draw.randrange(10)) for _ in range(3)])


def _phrase(draw: random.Random) -> str:
    words = ["tiger", "lamp", "orbit", "cactus", "velvet", "anchor", "puzzle", "maple", "rocket", "saddle"]
    return draw.choice("-_.").join(draw.sample(words, 4)) + str(draw.randrange(10, 99))


def _foreign(draw: random.Random) -> str:
    return (
        draw.choice(["Käse", "Müsli", "façade", "mañana", "сова", "łódka"]) + draw.choice("!?#$") + str(draw.randrange(100, 9999))
    )


def _words(draw: random.Random) -> str:
    return "".join(draw.sample(["blau", "wolke", "tiger", "haus", "stern", "regen", "lamp", "onyx"], 2))


DRAWN: dict[str, Draw] = {
    "pw": lambda draw: draw.choice([draw_password, draw_password, _dotted, _phrase])(draw),
    "word": _words, "dotted": _dotted, "phrase": _phrase, "foreign": _foreign, "pin": some(string.digits, 6),
    "hex8": some(_HEX, 8), "hex12": some(_HEX, 12), "hex16": some(_HEX, 16), "hex20": some(_HEX, 20), "hex24": some(_HEX, 24),
    "hex32": some(_HEX, 32), "hex40": some(_HEX, 40), "hex64": some(_HEX, 64), "hex128": some(_HEX, 128),
    "alnum16": some(_ALNUM, 16), "alnum20": some(_ALNUM, 20), "alnum24": some(_ALNUM, 24), "alnum32": some(_ALNUM, 32),
    "alnum40": some(_ALNUM, 40), "alnum64": some(_ALNUM, 64), "lower24": some(_LOWER, 24), "lower32": some(_LOWER, 32),
    "url43": some(_URL64, 43), "url64": some(_URL64, 64), "b32": base64_of(32), "b48": base64_of(48), "b64": base64_of(64),
    "b300": base64_of(300), "b900": base64_of(900), "digits6": some(string.digits, 6), "digits8": some(string.digits, 8),
    "digits10": some("123456789", 10), "digits16": some("123456789", 16), "digits18": some("123456789", 18),
    "uuid": lambda draw: str(uuid.UUID(int=draw.getrandbits(128))), "n": lambda draw: str(draw.randrange(2, 99)),
    "year": lambda draw: str(draw.randrange(1990, 2031)), "badcard": failing_card,
    "aws": SECRETS["aws"], "awssecret": SECRETS["aws secret"], "jwt": SECRETS["jwt"], "pem": SECRETS["private key"],
    "card": SECRETS["card"], "openai": SECRETS["openai project"], "anthropic": SECRETS["anthropic"], "ghp": SECRETS["github"],
    "ghpat": SECRETS["github fine-grained"], "gitlab": SECRETS["gitlab"], "slack": SECRETS["slack"], "stripe": SECRETS["stripe"],
    "google": SECRETS["google"], "hf": SECRETS["hugging face"], "npm": SECRETS["npm"], "sendgrid": SECRETS["sendgrid"],
    "telegram": SECRETS["telegram"],
    "claw": key("cl", "aw-", (_URL64, 32)),
    "discord": key("MT", (_ALNUM, 22), ".", "G", (_URL64, 5), ".", (_URL64, 38)),
    "discordhook": key("https://discord.com/api/webhooks/", ("123456789", 18), "/", (_URL64, 68)),
    "slackhook": key("https://hooks.slack.com/services/T", (_UPPER, 8), "/B", (_UPPER, 8), "/", (_ALNUM, 24)),
    "mailgun": key("ke", "y-", (_HEX, 32)), "mailgun2": key((_HEX, 32), "-", (_HEX, 8), "-", (_HEX, 8)),
    "sas": lambda draw: quote(base64_of(32)(draw), safe=""),
    "azuread": key((_ALNUM, 3), "8Q~", (_URL64, 34)), "digitalocean": key("dop_", "v1_", (_HEX, 64)),
    "shopify": key("shp", "at_", (_HEX, 32)), "vault": key("hv", "s.", (_URL64, 95)), "databricks": key("da", "pi", (_HEX, 32)),
    "linear": key("lin_", "api_", (_ALNUM, 40)), "notion": key("nt", "n_", (string.digits, 11), (_ALNUM, 35)),
    "planetscale": key("pscale_", "pw_", (_ALNUM, 43)), "pulumi": key("pu", "l-", (_HEX, 40)),
    "fly": key("fm", "2_", (_ALNUM, 110), "=="), "doppler": key("dp", ".pt.", (_ALNUM, 43)), "newrelic": key("NR", "AK-", (_UPPER, 27)),
    "sentry": key("sntr", "yu_", (_HEX, 64)), "postman": key("PM", "AK-", (_HEX, 24), "-", (_HEX, 34)),
    "heroku": key("HRKU", "-AA", (_URL64, 58)), "docker": key("dckr_", "pat_", (_URL64, 27)), "mapbox": key("sk", ".eyJ1Ijoi", (_ALNUM, 50), ".", (_URL64, 22)),
    "square": key("EA", "AA", (_URL64, 60)), "alibaba": key("LT", "AI", (_ALNUM, 20)), "tailscale": key("tskey-", "auth-k", (_ALNUM, 11), "CNTRL-", (_ALNUM, 32)),
    "age": key("AGE-", "SECRET-KEY-1", ("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58)), "artifactory": key("AK", "Cp", (_ALNUM, 69)),
    "atlassian": key("ATA", "TT3xFfGF0", (_URL64, 170), "=", ("0123456789ABCDEF", 8)), "grafana": key("gl", "sa_", (_ALNUM, 32), "_", (_HEX, 8)),
    "easypost": key("EZ", "AK", (_HEX, 54)), "airtable": key("pa", "t", (_ALNUM, 14), ".", (_HEX, 64)), "brevo": key("xkey", "sib-", (_HEX, 64), "-", (_ALNUM, 16)),
    "supabase": key("sb", "p_", (_HEX, 40)), "terraform": key((_ALNUM, 14), ".atl", "asv1.", (_URL64, 67)), "pypi": key("pyp", "i-AgEIcHlwaS5vcmc", (_URL64, 160)),
    "rubygems": key("ruby", "gems_", (_HEX, 48)), "groq": key("gs", "k_", (_ALNUM, 52)), "xai": key("xa", "i-", (_ALNUM, 80)), "replicate": key("r", "8_", (_ALNUM, 37)),
    "perplexity": key("pp", "lx-", (_ALNUM, 48)), "nvidia": key("nva", "pi-", (_URL64, 64)), "googleoauth": key("GOC", "SPX-", (_URL64, 28)), "ya29": key("ya", "29.a0", (_URL64, 160)),
    "dynatrace": key("dt0", "c01.", (_UPPER, 24), ".", (_UPPER, 64)), "readme": key("rd", "me_", (_LOWER, 70)), "typeform": key("tf", "p_", (_URL64, 59)),
    "contentful": key("CF", "PAT-", (_URL64, 43)), "figma": key("fig", "d_", (_URL64, 40)), "twilio": key("S", "K", (_HEX, 32)), "telnyx": key("KE", "Y01", ("0123456789ABCDEF", 32), "_", (_ALNUM, 22)),
    "adafruit": key("ai", "o_", (_ALNUM, 28)), "langsmith": key("lsv2_", "pt_", (_HEX, 32), "_", (_HEX, 10)), "openshift": key("sha", "256~", (_URL64, 43)), "cloudinary": key("cloud", "inary://", ("123456789", 15), ":", (_URL64, 27), "@demo"),
    "teams": lambda draw: f"https://acme.webhook.office.com/webhookb2/{DRAWN['uuid'](draw)}@{DRAWN['uuid'](draw)}/IncomingWebhook/{some(_HEX, 32)(draw)}/{DRAWN['uuid'](draw)}",
    "userpass": lambda draw: base64.b64encode(f"deploy:{draw_password(draw)}".encode()).decode(),
    "sshbody": base64_of(120), "wifi": some(_ALNUM, 12), "seed": lambda draw: " ".join(draw.sample(_SEED_WORDS, 12)),
}  # fmt: skip
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE32 = string.ascii_uppercase + "234567"


def _crockford(length: int) -> tuple[str, int]:
    return "23456789ABCDEFGHJKLMNPQRSTVWXYZ", length


def _uuid(before: str) -> Draw:
    return lambda draw: before + DRAWN["uuid"](draw)


def _armored(draw: random.Random) -> str:
    body = base64.b64encode(draw.randbytes(600)).decode()
    rows = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{rows}\n=aB3x\n-----END PGP PRIVATE KEY BLOCK-----"


DRAWN |= {  # for the fresh lines
    "onepassword": key("ops", "_eyJ", (_ALNUM, 250)), "bedrock": key("ABS", "K", (_ALNUM, 130)), "awssession": key("FwoGZXIvYXdzE", (_ALNUM, 300), "="),
    "opkey": key("A", "3-", _crockford(6), "-", _crockford(6), "-", _crockford(5), "-", _crockford(5), "-", _crockford(5), "-", _crockford(5)),
    "bitbucket": key("ATB", "B", (_ALNUM, 32)), "clojars": key("CLOJ", "ARS_", (_LOWER, 60)), "originca": key("v1", ".0-", (_HEX, 24), "-", (_HEX, 146)),
    "definednet": key("dnk", "ey-", (_LOWER, 26), "-", (_LOWER, 52)), "duffel": key("duf", "fel_live_", (_URL64, 43)), "facebook": key("EA", "AM", (_ALNUM, 180)),
    "flutterwave": key("FLWS", "ECK-", (_HEX, 32), "-X"), "frameio": key("fi", "o-u-", (_URL64, 64)), "ghu": key("gh", "u_", (_ALNUM, 36)), "ghr": key("gh", "r_", (_ALNUM, 76)),
    "gltrigger": key("glp", "tt-", (_HEX, 40)), "glrunner": key("glr", "t-", (_URL64, 20)), "gldeploy": key("gld", "t-", (_URL64, 20)), "glreg": key("GR13", "48941", (_URL64, 20)),
    "harness": key("pa", "t.", (_ALNUM, 22), ".", (_HEX, 24), ".", (_ALNUM, 20)), "hubspot": _uuid("pat-na1-"), "infracost": key("ic", "o-", (_ALNUM, 32)),
    "jfrogref": key("cmVm", "dGtuOj", (_ALNUM, 54)), "launchdarkly": _uuid("sdk-"), "mailchimp": key((_HEX, 32), "-us", ("123456789", 1)),
    "maxmind": key((_ALNUM, 6), "_", (_ALNUM, 29), "_mmk"), "netlify": key("nf", "p_", (_ALNUM, 36)), "newreliclicense": key((_HEX, 36), "NR", "AL"),
    "notionold": key("sec", "ret_", (_ALNUM, 43)), "nuget": key("oy", "2", (_LOWER, 43)), "okta": key("0", "0", (_URL64, 40)),
    "openaisvc": key("sk-svc", "acct-", (_URL64, 74), "T3Blbk", "FJ", (_URL64, 74)), "openaiadmin": key("sk-adm", "in-", (_URL64, 74), "T3Blbk", "FJ", (_URL64, 74)),
    "openrouter": key("sk-or", "-v1-", (_HEX, 64)), "octopus": key("AP", "I-", (_UPPER, 26)), "plaid": _uuid("access-production-"), "prefect": key("pn", "u_", (_ALNUM, 36)),
    "rapidapi": key((_LOWER, 10), "msh", (_LOWER, 15), "p1", (_LOWER, 6), "jsn", (_LOWER, 12)), "shippo": key("shippo", "_live_", (_HEX, 40)), "shopifysecret": key("shp", "ss_", (_HEX, 32)),
    "sidekiq": key((_HEX, 8), ":", (_HEX, 8)), "slackapp": key("xap", "p-1-A", (_UPPER, 10), "-", ("123456789", 13), "-", (_HEX, 64)), "slackrefresh": key("xox", "e-1-", (_ALNUM, 146)),
    "slackcookie": key("xox", "d-", (_ALNUM, 60), "%2B", (_ALNUM, 60), "%3D%3D"), "sonar": key("sq", "u_", (_HEX, 40)), "sourcegraph": key("sg", "p_", (_HEX, 16), "_", (_HEX, 40)),
    "squareoauth": key("sq0", "csp-", (_URL64, 43)), "stripewh": key("wh", "sec_", (_ALNUM, 32)), "stripetest": key("sk_", "test_", (_ALNUM, 24)), "supabasenew": key("sb_", "secret_", (_URL64, 31)),
    "twitter": key("AAAAAAAAAAAAAAAAAAAAA", (_ALNUM, 30), "%2F", (_ALNUM, 50), "%3D"), "vaultold": key("s", ".", (_ALNUM, 24)), "vaultbatch": key("hv", "b.", (_URL64, 140)),
    "yandex": key("t1", ".9eu", (_URL64, 60), ".", (_URL64, 86)), "yandexkey": key("AQ", "VN", (_URL64, 36)), "elevenlabs": key("sk", "_", (_HEX, 48)), "tavily": key("tv", "ly-", (_ALNUM, 32)),
    "pinecone": key("pc", "sk_", (_ALNUM, 6), "_", (_ALNUM, 63)), "firecrawl": key("f", "c-", (_HEX, 32)), "jina": key("ji", "na_", (_HEX, 32), (_ALNUM, 28)), "langfuse": _uuid("sk-lf-"),
    "posthog": key("ph", "x_", (_ALNUM, 43)), "resend": key("r", "e_", (_ALNUM, 8), "_", (_ALNUM, 24)), "buildkite": key("bku", "a_", (_HEX, 40)), "circleci": key("CCI", "PAT_", (_ALNUM, 22), "_", (_HEX, 40)),
    "render": key("rn", "d_", (_ALNUM, 28)), "doorefresh": key("dor_", "v1_", (_HEX, 64)), "neon": key("na", "pi_", (_LOWER, 64)), "modal": key("a", "s-", (_ALNUM, 22)),
    "base32": some(_BASE32, 32), "wif": key("K", ("wxyz", 1), (_BASE58, 50)), "xprv": key("xp", "rv9s21ZrQH143K", (_BASE58, 97)), "pgp": _armored,
    "hexup128": some("0123456789ABCDEF", 128), "django": some(string.ascii_lowercase + string.digits + "!@#$%^&*(-_=+)", 50), "lower7": some(_LOWER, 7), "hex37": some(_HEX, 37),
    "digits12": some("123456789", 12), "upper10": some(_UPPER, 10), "upper16": some(_UPPER, 16), "upper20": some("0123456789ABCDEFGHJKMNPQRSTVWXYZ", 21), "alnum14": some(_ALNUM, 14),
}  # fmt: skip
_WIDE = {ord(letter): ord(letter) + 0xFEE0 for letter in string.ascii_letters + string.digits}


def _zero_width(text: str) -> str:
    return "\u200b".join(text[at : at + 5] for at in range(0, len(text), 5))


FORMS: dict[str, Callable[[str], str]] = {
    "html": lambda text: html.escape(text).replace("!", "&#33;").replace("-", "&#x2d;", 1),
    "url": lambda text: quote(text, safe=""),
    "b64": lambda text: base64.b64encode(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "unicode": lambda text: "".join(f"\\u{ord(letter):04x}" if place % 3 == 0 else letter for place, letter in enumerate(text)),
    "backslash": lambda text: text.replace("/", "\\/").replace("\n", "\\n"),
    "wide": lambda text: text.translate(_WIDE),
    "zero": _zero_width,
    "dots": lambda text: re.sub(r"[ -]?(\d{4})(?=.)", r"\1.", re.sub(r"\D", "", text)),
    "nbsp": lambda text: re.sub(r"(\d{4})(?=.)", "\\1\u00a0", re.sub(r"\D", "", text)),
    "lines": lambda text: f"{text[: len(text) // 2]}\n{text[len(text) // 2 :]}",
    "indent": lambda text: text.replace("\\n", "\n").replace("\n", "\n    "),
    "crlf": lambda text: text.replace("\\n", "\n").replace("\n", "\r\n"),
    "quoted": lambda text: text.replace("\\n", "\n").replace("\n", "\n> "),
    "concat": lambda text: f'{text[:15]}" + "{text[15:]}',
}


def templates(half: str) -> dict[str, list[str]]:
    """The templates of one half: "secret" and "harmless"."""
    found: dict[str, list[str]] = {"secret": [], "harmless": []}
    heading = ""
    for line in (Path(__file__).parent / f"labelled_{half}.txt").read_text().splitlines():
        if line.startswith("# "):
            heading = line[2:]
        elif line:
            found[heading].append(line)
    return found


@cache
def _drawn(half: str) -> dict[str, Draw]:
    """Return the drawers of a part's names. Two authors may use the same name for different things."""
    from scripts.benchmarks.labelled_drawers import SECOND  # late import: both modules use the functions above
    from scripts.benchmarks.labelled_drawers_third import THIRD

    return DRAWN | (THIRD if half == FRESH else SECOND)


def filled(template: str, draw: random.Random, half: str) -> Line:
    """Fill one template. The kind of the line is the template, so that a report can name it."""
    secrets: list[str] = []

    def put(match: re.Match[str]) -> str:
        secret, form, plain = match.groups()
        if plain is not None:
            return drawn[plain](draw) if plain in drawn else match[0]
        secrets.append(FORMS[form](drawn[secret](draw)) if form else drawn[secret](draw))
        return secrets[-1]

    drawn = _drawn(half)
    text = _PLACE.sub(put, template.replace("⏎", "\n"))
    return Line(text, secrets[0] if secrets else None, template)


def lines_of(half: str, rounds: int, seed: int = 0) -> list[Line]:
    """Fill each template of a half `rounds` times."""
    draw = random.Random(f"{half}:{seed}")
    found = templates(half)
    return [filled(template, draw, half) for kind in ("secret", "harmless") for template in found[kind] for _ in range(rounds)]
