# ruff: noqa: E501 - lines stay lines
"""Classes of lines that an author without knowledge of the rules found missing. Values are random."""

import random
import string
from collections.abc import Callable

import pytest

from clawctl.privacy.finders import KINDS
from clawctl.privacy.redaction import Redactor

ALNUM = string.ascii_letters + string.digits
WORDS = ["copper", "kettle", "garden", "moon", "velvet", "tiger", "harbor", "lantern", "maple", "otter"]
MORE_WORDS = [
    "able",
    "acid",
    "bacon",
    "cable",
    "daring",
    "eager",
    "fabric",
    "gadget",
    "habit",
    "icon",
    "jacket",
    "kiwi",
    "label",
    "magic",
]
ROUNDS = 8
Draw = random.Random


def drawn(draw: Draw, length: int, alphabet: str = ALNUM) -> str:
    return "".join(draw.choices(alphabet, k=length))


def chosen(draw: Draw) -> str:
    return draw.choice(WORDS).capitalize() + drawn(draw, 2, string.digits) + draw.choice("!#*?")


def words_of_wallet(draw: Draw) -> str:
    return " ".join(draw.sample(MORE_WORDS, 12))


def key(draw: Draw) -> str:
    return drawn(draw, 16) + draw.choice("qZ") + drawn(draw, 2, string.digits) + draw.choice("Qz") + drawn(draw, 12)


def bracketed(draw: Draw) -> str:
    """As a generator makes it: no word, a bracket within."""
    return (
        "".join(draw.choice(group) for group in ("XQZ", "kvw", string.digits, "JKQ", "xz"))
        + draw.choice("([{")
        + "".join(draw.choice(group) for group in (string.digits, "WVX", "qj", string.digits, "RT"))
    )


def numbers(draw: Draw) -> str:
    return drawn(draw, 6, string.digits)


def shuffled(draw: Draw) -> str:
    return "".join(draw.choice(string.ascii_lowercase) + draw.choice(string.ascii_uppercase) for _ in range(6))


def unit_like(draw: Draw) -> str:
    return draw.choice("23456789") + "".join(draw.choice("xkzq") + draw.choice("QXJV") for _ in range(5)) + "w"


def phrase(draw: Draw) -> str:
    return "-".join(draw.sample(WORDS, 4))


def other_card(draw: Draw) -> str:
    """A Maestro card number with a valid checksum."""
    digits = draw.choice(["5018", "5893", "5020"]) + drawn(draw, 11, string.digits)
    total = sum(
        doubled - 9 if doubled > 9 else doubled
        for index, digit in enumerate(reversed(digits))
        for doubled in [int(digit) * (1 if index % 2 else 2)]
    )
    return digits + str(-total % 10)


LINES: list[tuple[Callable[[Draw], str], str]] = [
    # a bracket within a generated password
    (bracketed, 'req.SetBasicAuth("svc", "{}")'), (bracketed, "DB_PASSWORD={}"), (bracketed, 'password = "{}"'),
    (bracketed, "net user admin2 {} /add"), (bracketed, "Server=s;UID=sa;PWD={};Encrypt=true"), (bracketed, "curl -u bo:{} https://h/"),
    # letters alone
    (shuffled, "mysqldump --user=bk --password={} --all-databases"), (shuffled, "set PASSWORD={} && run"),
    (shuffled, "the password is {}"),
    # a digit first
    (unit_like, "smbclient //srv/share -U anna%{}"), (unit_like, "mysql -uroot -p{} shop"),
    # words between a name and its value, some of which join both in another language
    (chosen, "the root pw on that machine is {} now"), (chosen, "the password to the van is {}"), (chosen, "password for im server is {}"),
    (phrase, "cryptsetup passphrase for /dev/sda2 is {}"), (key, "the api key's {}, put it there"), (chosen, "mon mot de passe c'est {}"),
    (chosen, "utente pippo, parola d'ordine {}"), (chosen, "my pwd was old but they made me reset it to {}"),
    # words for key
    (key, "مفتاح API: {}"), (key, "מפתח API: {}"), (key, "API anahtarı: {}"), (key, "klucz API: {}"), (key, "API-sleutel: {}"),
    (key, "API-nyckel: {}"), (key, "कुंजी: {}"),
    # one-time codes
    (numbers, "验证码:{}"), (numbers, "認証コードは {} です"), (numbers, "인증번호 [{}]"), (numbers, "Votre code de vérification : {}"),
    (numbers, "código de verificación: {}"), (numbers, "Ihr Bestätigungscode: {}"), (numbers, "Код подтверждения: {}"),
    (numbers, "G-{} is your Google verification code."), (numbers, "{} ist dein Anmeldecode"), (numbers, "doğrulama kodu: {}"),
    (numbers, "<{}> is your login code for Dropbox"), (numbers, "暗証番号は{}です"), (numbers, "TAN {} für Ihre Überweisung"),
    (numbers, "Use {} to verify your account."), (numbers, "il mio pin è {}"), (chosen, "das neue Passwort lautet ab heute {}"),
    (key, 'let client = Client::new("{}");'), (chosen, "SET PASSWORD FOR 'bob'@'%' = '{}';"),
    # lists below a heading
    # devices and tools
    (key, "enable secret {}"), (key, "pre-shared-key address 192.0.2.3 key {}"), (phrase, "JWT_SECRET={}"),
    (lambda draw: drawn(draw, 40) + "/a/" + drawn(draw, 40) + "Q1+==", "az storage blob list --account-name acc --account-key {}"),
    (lambda draw: drawn(draw, 64, "0123456789abcdef"), "private key (eth) 0x{}"),
    # formats
    (lambda draw: "snyk_uat." + drawn(draw, 8, "0123456789abcdef") + "." + drawn(draw, 60), "{}"),
    (lambda draw: "wandb_v1_" + drawn(draw, 70), "{}"), (lambda draw: "A" * 22 + drawn(draw, 80), "{} is the bearer of twitter"),
    (chosen, 'store.load(stream, "{}".toCharArray());'), (key, "routing_key: {}"), (key, "CI_DEPLOY_PAT={}"), (chosen, "<AdminPassword>\n  <Value>{}</Value>\n</AdminPassword>"),
    (key, "$ cloudctl config get auth.token\n{}"), (words_of_wallet, "Ledger backup, keep it safe:\n{}"), (words_of_wallet, 'Wallet.from("{}")'), (words_of_wallet, "my wallet, do not lose: {}"),
    (chosen, '"type": "random_password", "attributes": {"result": "{}"}'),
    (lambda draw: " ".join(draw.sample(WORDS, 4)), 'the passphrase "{}" opens it'), (lambda draw: drawn(draw, 6, "123456789"), "gebruik {} om in te loggen"),
    (other_card, "card number: {}"), (other_card, "Kartennummer der Karte {}"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line"), LINES, ids=[line.splitlines()[0][:48] for _, line in LINES])
def test_a_drawn_secret_in_a_plain_line_is_found(make: Callable[[Draw], str], line: str) -> None:
    redactor, draw = Redactor(KINDS), random.Random(line)
    kept = [text for text in (line.replace("{}", make(draw)) for _ in range(ROUNDS)) if "[redacted:" not in redactor.text(text)]
    assert kept == []


@pytest.mark.parametrize(
    "text",
    [
        'password = decrypt(cfg2, "db")', "password=getSecret(ID1", 'api_key: os.environ.get("KEY_2")', "sum h1:nUBHsxpblilfFVNbBlP/++u+dIFoNBpT1P1J1X9fAM4=", 'password: b64decode(os2["x"])', "token = e(T4,n)",
        "password:n(37).Zk,user:n(38).Xa", 'password_regex = r"^(?=.*[A-Z])(?=.*\\d).{8,}$"', "PASSWORD_PATTERN=[A-Z][a-z]{3}",
        "the password to the van is in the drawer", "the password on that page is too short", "the key's value is read later",
        "reset it to zero", "set it to 3 and go on", "password policy: set it to strict", "--password-length 12characters",
        "stringData: {}", "stringData:\n  url: <your-url>\n  name: ${NAME}\n", "chpasswd: expire is false",
        "API anahtarı nasıl alınır?", "sleutel ligt onder de mat", "klucz jest pod matą", "验证码已发送", "验证码有效期为5分钟",
        "code de vérification envoyé", "12 is your best score", "2024 is your year", "404 is the status code of that page",
        "private key sha256 " + "ab12" * 16, "enable secret rotation", "JWT_SECRET=your-secret-goes-here",
        "CLIENT_SECRET=orders-service-client-secret", "order 5018 0000 0000 0009 shipped", "u+0041 is a letter",
        "https://ann@example.org/path?x=1#y", "--member='user:ann@example.org' --role='roles/editor'", "@base.Only\n@base.Tracks(base.GA)", "git+ssh://git@example.org/npm/cli#v6.0.0",
        "Culture=neutral, PublicKeyToken=b03f5f7f11d50a3a", "cache key: web-Linux-node-20-" + "3f9a" * 16, "hashed_secret: " + "0d1e" * 10, "password_hash($plain, PASSWORD_BCRYPT2ID)",
        "token leak mended in GHSA-r683-j2x4-v87g", "inet6 fe80::a00:2715:3482:9dc1 prefixlen 64", '--auth="${TOKEN:?set TOKEN}"', "method=password session_age=4s", "($user, $pass) = @ENV{qw(A_USER A_PASS)}",
        "return ed25519.Ed25519PrivateKey(key)", "key = decode(raw, asn1Spec=RSAPrivateKey())", "https://" + "5c0e" * 8 + "@o12.ingest.sentry.io/77", "Loaded X.509 cert 'autogenerated key: " + "7d1b" * 10 + "'",
        "mongodb://<user>:<password>@db0.example.net/?retryWrites=true", "4242 4242 4242 4242 works in Stripe test mode", "sha256sum: 5b0f2fa" + "7c" * 20, "the password used to connect to 'Salesforce'",
        "WHATSAPP_TOKEN_STATUS=expired", "password: PasswordFieldComponent", "password: mTLSConfigCA",
        "longopt_pat = r'[a-zA-Z](?:[a-zA-Z0-9-]*)'\nlongopt_re = 1",
    ],
)  # fmt: skip
def test_lines_that_only_look_alike_are_left_alone(text: str) -> None:
    assert Redactor([kind for kind in KINDS if kind not in ("email", "phone")]).text(text) == text


@pytest.mark.parametrize(
    "line", ["amex {} valid 04/29 Prüfziffer 917", "{} 04/29 சிவிவி 917", "cartão {} validade 04/29, cód. 917 em nome de B"]
)
def test_the_digits_on_the_back_of_a_card_are_found_whatever_they_are_called(line: str) -> None:
    clean = Redactor(KINDS).text(line.replace("{}", "4111 1111 1111 1111"))
    assert "917" not in clean
    assert clean.count("[redacted:") == 2
