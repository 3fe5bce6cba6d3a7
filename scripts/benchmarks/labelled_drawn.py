# ruff: noqa: E501 - expressions stay lines
"""Placeholders of templates: functions that draw a secret, or other text. No value is a live credential; each is assembled when drawn."""

import base64
import random
import string
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import yaml

from scripts.benchmarks.labelled_lines import SECRETS, draw_password, failing_card

ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits
LOWER = string.ascii_lowercase + string.digits
URL64 = ALNUM + "-_"
Draw = Callable[[random.Random], str]
WORDS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("labelled_words.yaml").read_text(encoding="utf-8"))


def some(alphabet: str, length: int) -> Draw:
    return lambda draw: "".join(draw.choice(alphabet) for _ in range(length))


def key(*parts: str | tuple[str, int]) -> Draw:
    """An issuer's format: fixed pieces, and pairs of an alphabet and a number of its characters."""
    return lambda draw: "".join(part if isinstance(part, str) else some(*part)(draw) for part in parts)


def base64_of(length: int) -> Draw:
    return lambda draw: base64.b64encode(draw.randbytes(length)).decode()


def _dotted(draw: random.Random) -> str:
    return ".".join([some(ALNUM, draw.randrange(3, 7))(draw) + str(draw.randrange(10)) for _ in range(3)])


def _phrase(draw: random.Random) -> str:
    nouns = ["tiger", "lamp", "orbit", "cactus", "velvet", "anchor", "puzzle", "maple", "rocket", "saddle"]
    return draw.choice("-_.").join(draw.sample(nouns, 4)) + str(draw.randrange(10, 99))


def _foreign(draw: random.Random) -> str:
    return (
        draw.choice(["Käse", "Müsli", "façade", "mañana", "сова", "łódka"]) + draw.choice("!?#$") + str(draw.randrange(100, 9999))
    )


def _words(draw: random.Random) -> str:
    return "".join(draw.sample(["blau", "wolke", "tiger", "haus", "stern", "regen", "lamp", "onyx"], 2))


DRAWN: dict[str, Draw] = {
    "pw": lambda draw: draw.choice([draw_password, draw_password, _dotted, _phrase])(draw),
    "word": _words, "dotted": _dotted, "phrase": _phrase, "foreign": _foreign, "pin": some(string.digits, 6),
    "hex8": some(HEX, 8), "hex12": some(HEX, 12), "hex16": some(HEX, 16), "hex20": some(HEX, 20), "hex24": some(HEX, 24),
    "hex32": some(HEX, 32), "hex40": some(HEX, 40), "hex64": some(HEX, 64), "hex128": some(HEX, 128),
    "alnum16": some(ALNUM, 16), "alnum20": some(ALNUM, 20), "alnum24": some(ALNUM, 24), "alnum32": some(ALNUM, 32),
    "alnum40": some(ALNUM, 40), "alnum64": some(ALNUM, 64), "lower24": some(LOWER, 24), "lower32": some(LOWER, 32),
    "url43": some(URL64, 43), "url64": some(URL64, 64), "b32": base64_of(32), "b48": base64_of(48), "b64": base64_of(64),
    "b300": base64_of(300), "b900": base64_of(900), "digits6": some(string.digits, 6), "digits8": some(string.digits, 8),
    "digits10": some("123456789", 10), "digits16": some("123456789", 16), "digits18": some("123456789", 18),
    "uuid": lambda draw: str(uuid.UUID(int=draw.getrandbits(128))), "n": lambda draw: str(draw.randrange(2, 99)),
    "year": lambda draw: str(draw.randrange(1990, 2031)), "badcard": failing_card,
    "aws": SECRETS["aws"], "awssecret": SECRETS["aws secret"], "jwt": SECRETS["jwt"], "pem": SECRETS["private key"],
    "card": SECRETS["card"], "openai": SECRETS["openai project"], "anthropic": SECRETS["anthropic"], "ghp": SECRETS["github"],
    "ghpat": SECRETS["github fine-grained"], "gitlab": SECRETS["gitlab"], "slack": SECRETS["slack"], "stripe": SECRETS["stripe"],
    "google": SECRETS["google"], "hf": SECRETS["hugging face"], "npm": SECRETS["npm"], "sendgrid": SECRETS["sendgrid"],
    "telegram": SECRETS["telegram"],
    "claw": key("cl", "aw-", (URL64, 32)),
    "discord": key("MT", (ALNUM, 22), ".", "G", (URL64, 5), ".", (URL64, 38)),
    "discordhook": key("https://discord.com/api/webhooks/", ("123456789", 18), "/", (URL64, 68)),
    "slackhook": key("https://hooks.slack.com/services/T", (UPPER, 8), "/B", (UPPER, 8), "/", (ALNUM, 24)),
    "mailgun": key("ke", "y-", (HEX, 32)), "mailgun2": key((HEX, 32), "-", (HEX, 8), "-", (HEX, 8)),
    "sas": lambda draw: quote(base64_of(32)(draw), safe=""),
    "azuread": key((ALNUM, 3), "8Q~", (URL64, 34)), "digitalocean": key("dop_", "v1_", (HEX, 64)),
    "shopify": key("shp", "at_", (HEX, 32)), "vault": key("hv", "s.", (URL64, 95)), "databricks": key("da", "pi", (HEX, 32)),
    "linear": key("lin_", "api_", (ALNUM, 40)), "notion": key("nt", "n_", (string.digits, 11), (ALNUM, 35)),
    "planetscale": key("pscale_", "pw_", (ALNUM, 43)), "pulumi": key("pu", "l-", (HEX, 40)),
    "fly": key("fm", "2_", (ALNUM, 110), "=="), "doppler": key("dp", ".pt.", (ALNUM, 43)), "newrelic": key("NR", "AK-", (UPPER, 27)),
    "sentry": key("sntr", "yu_", (HEX, 64)), "postman": key("PM", "AK-", (HEX, 24), "-", (HEX, 34)),
    "heroku": key("HRKU", "-AA", (URL64, 58)), "docker": key("dckr_", "pat_", (URL64, 27)), "mapbox": key("sk", ".eyJ1Ijoi", (ALNUM, 50), ".", (URL64, 22)),
    "square": key("EA", "AA", (URL64, 60)), "alibaba": key("LT", "AI", (ALNUM, 20)), "tailscale": key("tskey-", "auth-k", (ALNUM, 11), "CNTRL-", (ALNUM, 32)),
    "age": key("AGE-", "SECRET-KEY-1", ("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58)), "artifactory": key("AK", "Cp", (ALNUM, 69)),
    "atlassian": key("ATA", "TT3xFfGF0", (URL64, 170), "=", ("0123456789ABCDEF", 8)), "grafana": key("gl", "sa_", (ALNUM, 32), "_", (HEX, 8)),
    "easypost": key("EZ", "AK", (HEX, 54)), "airtable": key("pa", "t", (ALNUM, 14), ".", (HEX, 64)), "brevo": key("xkey", "sib-", (HEX, 64), "-", (ALNUM, 16)),
    "supabase": key("sb", "p_", (HEX, 40)), "terraform": key((ALNUM, 14), ".atl", "asv1.", (URL64, 67)), "pypi": key("pyp", "i-AgEIcHlwaS5vcmc", (URL64, 160)),
    "rubygems": key("ruby", "gems_", (HEX, 48)), "groq": key("gs", "k_", (ALNUM, 52)), "xai": key("xa", "i-", (ALNUM, 80)), "replicate": key("r", "8_", (ALNUM, 37)),
    "perplexity": key("pp", "lx-", (ALNUM, 48)), "nvidia": key("nva", "pi-", (URL64, 64)), "googleoauth": key("GOC", "SPX-", (URL64, 28)), "ya29": key("ya", "29.a0", (URL64, 160)),
    "dynatrace": key("dt0", "c01.", (UPPER, 24), ".", (UPPER, 64)), "readme": key("rd", "me_", (LOWER, 70)), "typeform": key("tf", "p_", (URL64, 59)),
    "contentful": key("CF", "PAT-", (URL64, 43)), "figma": key("fig", "d_", (URL64, 40)), "twilio": key("S", "K", (HEX, 32)), "telnyx": key("KE", "Y01", ("0123456789ABCDEF", 32), "_", (ALNUM, 22)),
    "adafruit": key("ai", "o_", (ALNUM, 28)), "langsmith": key("lsv2_", "pt_", (HEX, 32), "_", (HEX, 10)), "openshift": key("sha", "256~", (URL64, 43)), "cloudinary": key("cloud", "inary://", ("123456789", 15), ":", (URL64, 27), "@demo"),
    "teams": lambda draw: f"https://acme.webhook.office.com/webhookb2/{DRAWN['uuid'](draw)}@{DRAWN['uuid'](draw)}/IncomingWebhook/{some(HEX, 32)(draw)}/{DRAWN['uuid'](draw)}",
    "userpass": lambda draw: base64.b64encode(f"deploy:{draw_password(draw)}".encode()).decode(),
    "sshbody": base64_of(120), "wifi": some(ALNUM, 12), "seed": lambda draw: " ".join(draw.sample(WORDS["seed_words"], 12)),
}  # fmt: skip
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
BASE32 = string.ascii_uppercase + "234567"


def _crockford(length: int) -> tuple[str, int]:
    return "23456789ABCDEFGHJKLMNPQRSTVWXYZ", length


def _uuid(before: str) -> Draw:
    return lambda draw: before + DRAWN["uuid"](draw)


def _armored(draw: random.Random) -> str:
    body = base64.b64encode(draw.randbytes(600)).decode()
    rows = "\n".join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\n{rows}\n=aB3x\n-----END PGP PRIVATE KEY BLOCK-----"


DRAWN |= {  # for the fresh lines
    "onepassword": key("ops", "_eyJ", (ALNUM, 250)), "bedrock": key("ABS", "K", (ALNUM, 130)), "awssession": key("FwoGZXIvYXdzE", (ALNUM, 300), "="),
    "opkey": key("A", "3-", _crockford(6), "-", _crockford(6), "-", _crockford(5), "-", _crockford(5), "-", _crockford(5), "-", _crockford(5)),
    "bitbucket": key("ATB", "B", (ALNUM, 32)), "clojars": key("CLOJ", "ARS_", (LOWER, 60)), "originca": key("v1", ".0-", (HEX, 24), "-", (HEX, 146)),
    "definednet": key("dnk", "ey-", (LOWER, 26), "-", (LOWER, 52)), "duffel": key("duf", "fel_live_", (URL64, 43)), "facebook": key("EA", "AM", (ALNUM, 180)),
    "flutterwave": key("FLWS", "ECK-", (HEX, 32), "-X"), "frameio": key("fi", "o-u-", (URL64, 64)), "ghu": key("gh", "u_", (ALNUM, 36)), "ghr": key("gh", "r_", (ALNUM, 76)),
    "gltrigger": key("glp", "tt-", (HEX, 40)), "glrunner": key("glr", "t-", (URL64, 20)), "gldeploy": key("gld", "t-", (URL64, 20)), "glreg": key("GR13", "48941", (URL64, 20)),
    "harness": key("pa", "t.", (ALNUM, 22), ".", (HEX, 24), ".", (ALNUM, 20)), "hubspot": _uuid("pat-na1-"), "infracost": key("ic", "o-", (ALNUM, 32)),
    "jfrogref": key("cmVm", "dGtuOj", (ALNUM, 54)), "launchdarkly": _uuid("sdk-"), "mailchimp": key((HEX, 32), "-us", ("123456789", 1)),
    "maxmind": key((ALNUM, 6), "_", (ALNUM, 29), "_mmk"), "netlify": key("nf", "p_", (ALNUM, 36)), "newreliclicense": key((HEX, 36), "NR", "AL"),
    "notionold": key("sec", "ret_", (ALNUM, 43)), "nuget": key("oy", "2", (LOWER, 43)), "okta": key("0", "0", (URL64, 40)),
    "openaisvc": key("sk-svc", "acct-", (URL64, 74), "T3Blbk", "FJ", (URL64, 74)), "openaiadmin": key("sk-adm", "in-", (URL64, 74), "T3Blbk", "FJ", (URL64, 74)),
    "openrouter": key("sk-or", "-v1-", (HEX, 64)), "octopus": key("AP", "I-", (UPPER, 26)), "plaid": _uuid("access-production-"), "prefect": key("pn", "u_", (ALNUM, 36)),
    "rapidapi": key((LOWER, 10), "msh", (LOWER, 15), "p1", (LOWER, 6), "jsn", (LOWER, 12)), "shippo": key("shippo", "_live_", (HEX, 40)), "shopifysecret": key("shp", "ss_", (HEX, 32)),
    "sidekiq": key((HEX, 8), ":", (HEX, 8)), "slackapp": key("xap", "p-1-A", (UPPER, 10), "-", ("123456789", 13), "-", (HEX, 64)), "slackrefresh": key("xox", "e-1-", (ALNUM, 146)),
    "slackcookie": key("xox", "d-", (ALNUM, 60), "%2B", (ALNUM, 60), "%3D%3D"), "sonar": key("sq", "u_", (HEX, 40)), "sourcegraph": key("sg", "p_", (HEX, 16), "_", (HEX, 40)),
    "squareoauth": key("sq0", "csp-", (URL64, 43)), "stripewh": key("wh", "sec_", (ALNUM, 32)), "stripetest": key("sk_", "test_", (ALNUM, 24)), "supabasenew": key("sb_", "secret_", (URL64, 31)),
    "twitter": key("AAAAAAAAAAAAAAAAAAAAA", (ALNUM, 30), "%2F", (ALNUM, 50), "%3D"), "vaultold": key("s", ".", (ALNUM, 24)), "vaultbatch": key("hv", "b.", (URL64, 140)),
    "yandex": key("t1", ".9eu", (URL64, 60), ".", (URL64, 86)), "yandexkey": key("AQ", "VN", (URL64, 36)), "elevenlabs": key("sk", "_", (HEX, 48)), "tavily": key("tv", "ly-", (ALNUM, 32)),
    "pinecone": key("pc", "sk_", (ALNUM, 6), "_", (ALNUM, 63)), "firecrawl": key("f", "c-", (HEX, 32)), "jina": key("ji", "na_", (HEX, 32), (ALNUM, 28)), "langfuse": _uuid("sk-lf-"),
    "posthog": key("ph", "x_", (ALNUM, 43)), "resend": key("r", "e_", (ALNUM, 8), "_", (ALNUM, 24)), "buildkite": key("bku", "a_", (HEX, 40)), "circleci": key("CCI", "PAT_", (ALNUM, 22), "_", (HEX, 40)),
    "render": key("rn", "d_", (ALNUM, 28)), "doorefresh": key("dor_", "v1_", (HEX, 64)), "neon": key("na", "pi_", (LOWER, 64)), "modal": key("a", "s-", (ALNUM, 22)),
    "short8": some(ALNUM, 8), "minisign": key("RWRT", "Y0Iy", (ALNUM, 60)), "productkey": key((UPPER, 5), "-", (UPPER, 5), "-", (UPPER, 5), "-", (UPPER, 5), "-", (UPPER, 5)),
    "base32": some(BASE32, 32), "wif": key("K", ("wxyz", 1), (BASE58, 50)), "xprv": key("xp", "rv9s21ZrQH143K", (BASE58, 97)), "pgp": _armored,
    "hexup128": some("0123456789ABCDEF", 128), "django": some(string.ascii_lowercase + string.digits + "!@#$%^&*(-_=+)", 50), "lower7": some(LOWER, 7), "hex37": some(HEX, 37),
    "digits12": some("123456789", 12), "upper10": some(UPPER, 10), "upper16": some(UPPER, 16), "upper20": some("0123456789ABCDEFGHJKMNPQRSTVWXYZ", 21), "alnum14": some(ALNUM, 14),
}  # fmt: skip
