# ruff: noqa: E501 - lines of data stay lines
"""500 realistic lines, each labelled with its secret or with none. They are generated from a seed.

Secrets follow the formats that their issuers document (prefix, alphabet, length), never the detector's expressions. They are put into
the places where people and tools leave them: dotenv files, code, logs, curl commands, JSON, chat. No value is a live credential, and none
is stored: each is assembled when its line is made. The lines without a secret look as if they contained one.
"""

import base64
import random
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1, sha256
from itertools import pairwise
from pathlib import Path

import yaml

_ALNUM = string.ascii_letters + string.digits
_URL64 = _ALNUM + "-_"
_LOWER = string.ascii_lowercase + string.digits


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    secret: str | None  # the text that must be removed
    kind: str  # "aws", "password", …; in a line without a secret: the kind that it resembles


def labelled_lines(count: int = 500, seed: int = 0) -> list[Line]:
    """Make lines in random order, half of them with a secret."""
    draw = random.Random(seed)
    kinds, lookalikes = list(SECRETS.items()), list(_LOOKALIKES.items())
    lines = []
    for number in range(count // 2):
        kind, make = kinds[number % len(kinds)]
        secret = make(draw)
        lines.append(Line(draw.choice(_PLACES[_PLACE_OF.get(kind, "key")])(secret, draw), secret, kind))
    for number in range(count - count // 2):
        kind, make_line = lookalikes[number % len(lookalikes)]
        lines.append(Line(make_line(draw), None, kind))
    draw.shuffle(lines)
    return lines


def _some(draw: random.Random, alphabet: str, length: int) -> str:
    return "".join(draw.choice(alphabet) for _ in range(length))


def _token(prefix: str, alphabet: str, length: int, end: str = "") -> Callable[[random.Random], str]:
    return lambda draw: prefix + _some(draw, alphabet, length) + end


def _jwt(draw: random.Random) -> str:
    def part(value: str) -> str:
        return base64.urlsafe_b64encode(value.encode()).rstrip(b"=").decode()

    return ".".join([
        part('{"alg":"HS256","typ":"JWT"}'), part(f'{{"sub":"{draw.randrange(10**9)}","name":"Ann"}}'), _some(draw, _URL64, 43)
    ])  # fmt: skip


def _pem(draw: random.Random) -> str:
    name = draw.choice(["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED "])
    body = base64.b64encode(draw.randbytes(draw.choice([120, 300, 900]))).decode()
    newline = draw.choice(["\n", "\\n"])
    rows = newline.join(body[at : at + 64] for at in range(0, len(body), 64))
    return f"-----BEGIN {name}PRIVATE KEY-----{newline}{rows}{newline}-----END {name}PRIVATE KEY-----"


def draw_password(draw: random.Random) -> str:
    word = draw.choice(["summer", "dragon", "Correct", "blue", "winter", "pizza", "Montag", "lucky"])
    return draw.choice([
        lambda: f"{word}{draw.randrange(10, 9999)}",
        lambda: f"{word.title()}{draw.choice('!#&*?')}{draw.randrange(10, 999)}",
        lambda: word.replace("e", "3").replace("i", "1") + draw.choice("!$%") + str(draw.randrange(10)),
        lambda: _some(draw, _ALNUM + "!#%&*+-?^_", 14) + "7",
    ])()  # fmt: skip


def _card(draw: random.Random) -> str:
    prefix, length = draw.choice([("4", 16), ("51", 16), ("55", 16), ("37", 15), ("6011", 16), ("2221", 16)])
    digits = prefix + _some(draw, string.digits, length - len(prefix) - 1)
    digits += next(str(last) for last in range(10) if _checks(digits + str(last)))
    gap = draw.choice(["", " ", "-"])
    groups = (0, 4, 10, 15) if length == 15 else (0, 4, 8, 12, 16)
    return gap.join(digits[start:end] for start, end in pairwise(groups))


def _checks(digits: str) -> bool:
    total = 0
    for index, digit in enumerate(digits[::-1]):
        number = int(digit)
        if index % 2:
            number = number * 2 if number < 5 else number * 2 - 9
        total += number
    return total % 10 == 0


SECRETS: dict[str, Callable[[random.Random], str]] = {
    "aws": _token("AKIA", string.ascii_uppercase + "234567", 16),
    "aws secret": _token("", _ALNUM + "+/", 40),
    "openai": lambda draw: "sk-" + _some(draw, _ALNUM, 20) + "T3Blbk" + "FJ" + _some(draw, _ALNUM, 20),
    "openai project": lambda draw: "sk-proj-" + _some(draw, _URL64, 74) + "T3Blbk" + "FJ" + _some(draw, _URL64, 74),
    "anthropic": _token("sk-ant-" + "api03-", _URL64, 93, "AA"),
    "github": lambda draw: draw.choice(["ghp", "gho", "ghs"]) + "_" + _some(draw, _ALNUM, 36),
    "github fine-grained": lambda draw: "github_" + "pat_" + _some(draw, _ALNUM, 22) + "_" + _some(draw, _ALNUM, 59),
    "gitlab": _token("glpat" + "-", _URL64, 20),
    "slack": lambda draw: f"xox{draw.choice('bp')}-{_some(draw, string.digits, 12)}-{_some(draw, string.digits, 12)}-{_some(draw, _ALNUM, 24)}",
    "stripe": lambda draw: draw.choice(["sk", "rk"]) + "_live_" + _some(draw, _ALNUM, 24),
    "google": _token("AI" + "za", _URL64, 35),
    "hugging face": _token("hf" + "_", string.ascii_letters, 34),
    "npm": _token("npm" + "_", _ALNUM, 36),
    "sendgrid": lambda draw: "SG" + "." + _some(draw, _URL64, 22) + "." + _some(draw, _URL64, 43),
    "telegram": lambda draw: _some(draw, "123456789", 10) + ":AA" + _some(draw, _URL64, 33),
    "azure storage": lambda draw: base64.b64encode(draw.randbytes(64)).decode(),
    "custom key": lambda draw: draw.choice([lambda: uuid.UUID(int=draw.getrandbits(128)).hex, lambda: _some(draw, _ALNUM, 32)])(),
    "jwt": _jwt,
    "bearer": _token("", _ALNUM + "-._", 40),
    "private key": _pem,
    "password": draw_password,
    "password in address": draw_password,
    "password said": draw_password,
    "card": _card,
}  # fmt: skip

_PLACE_OF = {
    "aws secret": "named aws", "azure storage": "named azure", "custom key": "named key", "bearer": "header", "private key": "file",
    "password": "named password", "password in address": "address", "password said": "said", "card": "card",
}  # fmt: skip

_Place = Callable[[str, random.Random], str]
_PLACES: dict[str, list[_Place]] = {
    "key": [
        lambda key, draw: f"export {draw.choice(['SERVICE', 'APP', 'PROVIDER'])}_AUTH={key}",
        lambda key, draw: f"client = Client('{key}', timeout={draw.randrange(5, 60)})",
        lambda key, draw: f'{{"role": "tool", "output": "using {key} for region eu-west-{draw.randrange(1, 4)}"}}',
        lambda key, draw: f"I tried with {key} but it answers {draw.choice([401, 403])}, can you look?",
        lambda key, draw: f"[{draw.randrange(10, 24)}:{draw.randrange(10, 60)}:02] WARN request failed key={key} retry=1",
        lambda key, draw: f"<config><value>{key}</value></config>",
        lambda key, draw: f"curl https://api.example.com/v1/items?auth={key}&page={draw.randrange(9)}",
        lambda key, draw: f"- {key}",
    ],
    "named aws": [
        lambda key, draw: f"aws_secret_access_key = {key}",
        lambda key, draw: f'AWS_SECRET_ACCESS_KEY="{key}"',
        lambda key, draw: f'{{"SecretAccessKey": "{key}", "region": "us-east-{draw.randrange(1, 3)}"}}',
    ],
    "named azure": [
        lambda key, draw: f"DefaultEndpointsProtocol=https;AccountName=store{draw.randrange(99)};AccountKey={key};EndpointSuffix=core.windows.net",
        lambda key, draw: f"storage_key: {key}",
    ],
    "named key": [
        lambda key, draw: f"API_KEY={key}",
        lambda key, draw: f'const apiKey = "{key}";',
        lambda key, draw: f"client_secret: {key}",
        lambda key, draw: f'{{\\"access_token\\": \\"{key}\\", \\"expires_in\\": {draw.randrange(100, 9999)}}}',
        lambda key, draw: f"  --token {key} --verbose",
        lambda key, draw: f"SECRET_KEY = '{key}'  # django",
        lambda key, draw: f"the access token is {key}",
    ],
    "header": [
        lambda key, draw: f"Authorization: Bearer {key}",
        lambda key, draw: f'curl -H "authorization: bearer {key}" https://example.com/v{draw.randrange(1, 4)}/me',
        lambda key, draw: f"headers = {{'Authorization': 'Bearer {key}'}}",
    ],
    "file": [
        lambda key, draw: f"$ cat ~/.ssh/id_{draw.randrange(9)}\n{key}\n",
        lambda key, draw: f'{{"type": "service_account", "private_key": "{key}"}}',
    ],
    "named password": [
        lambda word, draw: f"DB_PASSWORD={word}",
        lambda word, draw: f'password: "{word}"',
        lambda word, draw: f'{{"user": "ann{draw.randrange(99)}", "password": "{word}"}}',
        lambda word, draw: f"db.connect(host='db{draw.randrange(9)}', user='app', passwd='{word}')",
        lambda word, draw: f"mysqldump --password={word} shop > shop.sql",
        lambda word, draw: f"sshpass -p {word} ssh root@10.0.0.{draw.randrange(255)}",
        lambda word, draw: f"curl -u admin:{word} https://intranet.example.com/",
        lambda word, draw: f"CREATE USER app{draw.randrange(9)} IDENTIFIED BY '{word}';",
        lambda word, draw: f"spring.datasource.password={word}",
    ],
    "address": [
        lambda word, draw: f"postgresql://app:{word}@db.example.com:5432/shop{draw.randrange(9)}",
        lambda word, draw: f"git clone https://ann:{word}@git.example.com/ann/notes.git",
        lambda word, draw: f"REDIS_URL=redis://:{word}@cache:6379/{draw.randrange(9)}",
    ],
    "said": [
        lambda word, draw: f"hi, my password is {word} and I still cannot log in",
        lambda word, draw: f"User: ann{draw.randrange(99)} Password: {word}",
        lambda word, draw: f"login ann / pwd: {word}",
        lambda word, draw: f"The Wi-Fi password was {word}, please put it on the flyer.",
        lambda word, draw: f"Passwort: {word}",
    ],
    "card": [
        lambda card, draw: f"please charge {card}, exp {draw.randrange(1, 13):02}/29",
        lambda card, draw: f'{{"number": "{card}", "cvc": "{draw.randrange(100, 999)}"}}',
        lambda card, draw: f"card={card}&name=Ann",
        lambda card, draw: f"My card number is {card}.",
    ],
}  # fmt: skip


def failing_card(draw: random.Random) -> str:
    digits = "4" + _some(draw, string.digits, 15)
    while _checks(digits):
        digits = "4" + _some(draw, string.digits, 15)
    return digits


_LINES: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("labelled_lookalikes.yaml").read_text(encoding="utf-8"))


def _word_line(kind: str) -> Callable[[random.Random], str]:
    lines = _LINES[kind]
    return lambda draw: draw.choice(lines).replace("#", str(draw.randrange(2, 99)))


_LOOKALIKES: dict[str, Callable[[random.Random], str]] = {
    "uuid": lambda draw: f"request_id={uuid.UUID(int=draw.getrandbits(128))} took {draw.randrange(999)} ms",
    "git hash": lambda draw: f"commit {sha1(draw.randbytes(8)).hexdigest()} (HEAD -> main)",
    "sha256": lambda draw: f"sha256:{sha256(draw.randbytes(8)).hexdigest()}  clawctl-0.{draw.randrange(9)}.tar.gz",
    "integrity": lambda draw: f'"integrity": "sha512-{base64.b64encode(draw.randbytes(64)).decode()}"',
    "image": lambda draw: f"![plot](data:image/png;base64,iVBORw0KGgo{base64.b64encode(draw.randbytes(300)).decode()})",
    "base64": lambda draw: f"payload: {base64.b64encode(draw.randbytes(150)).decode()}",
    "order number": lambda draw: f"Your order {draw.randrange(10**9, 10**10)}-{draw.randrange(100, 999)} ships on Monday.",
    "failing card": lambda draw: f"tracking number {failing_card(draw)}",
    "isbn": lambda draw: f"ISBN 978-{draw.randrange(10)}-{draw.randrange(100, 999)}-{draw.randrange(10000, 99999)}-{draw.randrange(10)}",
    "nanoseconds": lambda draw: f"ts={draw.randrange(17 * 10**17, 18 * 10**17)} level=info msg=done",
    "snowflake": lambda draw: f"tweet {draw.randrange(10**18, 2 * 10**18)} was deleted",
    "version": _word_line("version"),
    "public key": lambda draw: f"-----BEGIN PUBLIC KEY-----\n{base64.b64encode(draw.randbytes(90)).decode()}\n-----END PUBLIC KEY-----",
    "ssh public key": lambda draw: f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{base64.b64encode(draw.randbytes(31)).decode()[:41]} ann@laptop",
    "certificate": lambda draw: f"-----BEGIN CERTIFICATE-----\nMIID{base64.b64encode(draw.randbytes(120)).decode()}\n-----END CERTIFICATE-----",
    "talk of keys": _word_line("talk of keys"),
    "talk of passwords": _word_line("talk of passwords"),
    "code": _word_line("code"),
    "placeholder": _word_line("placeholder"),
    "counts": _word_line("counts"),
    "address": _word_line("address"),
    "identifiers": _word_line("identifiers"),
    "plain": _word_line("plain"),
}  # fmt: skip
