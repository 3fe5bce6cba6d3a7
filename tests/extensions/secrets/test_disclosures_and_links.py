"""Secrets that look like words, hashes or parts of an address are recognised by their context. Similar text stays."""

import pytest

from clawctl.extensions.secrets.text import Anchors, make_text, positions_of
from clawctl.privacy.finders import KINDS
from clawctl.privacy.redaction import Redactor

HEX = "8e1f0a77c25d49b3a6e2f0917bb4d35c6a80e92f41d7c3b58e06fa192d7c4b30"
SECRET = [
    ("https://app.example.org/auth/verify/4wFV27WaGbJ0rgOf6ZQCEgxHuC3I8AEG", "4wFV27WaGbJ0rgOf6ZQCEgxHuC3I8AEG"),
    ("rpc: https://mainnet.infura.io/v3/69fa5d1f88d238c0144575229a7b31cd", "69fa5d1f88d238c0144575229a7b31cd"),
    (f"networks: {{ base: {{ accounts: ['0x{HEX}'] }} }}", HEX),
    (f"new ethers.Wallet('0x{HEX}', provider)", HEX),
    ("Sicherheitsfrage, meine Antwort ist Quastenflosser", "Quastenflosser"),
    ("Passphrase on my gpg key is “guitar acoustic fossil antique”", "guitar acoustic fossil antique"),
    ("user guest2 and for the password use maple-803-Kettle", "maple-803-Kettle"),
    ("telephone banking password with my bank is violet walnut", "violet walnut"),
    ("WLAN-Netzwerkschlussel (WPA2)\n7290 3243 2318 3278 7675", "7290 3243 2318 3278 7675"),
    ("Safe in the closet, combination 27 left, 24 right, 58 left", "27 left, 24 right, 58 left"),
    ("badge + 6790 on the keypad", "6790"),
    ("Content-Transfer-Encoding: quoted-printable\n\npassword=3A Kestrel=2188q", "Kestrel=2188q"),
    ("Identifiant : mlegrand\nMot de passe : Genet.piquant", "Genet.piquant"),
]
HARMLESS = [
    "https://docs.example.org/auth/verify/email-verification-flow-overview",
    "https://mainnet.infura.io/v3/YOUR-PROJECT-ID",
    f"transactionHash: '0x{HEX}'",
    "Security question answers are stored as bcrypt hashes.",
    "Das Passwort ist „zu kurz oder zu einfach“.",
    "for the password use at least 12 characters",
    "the password on the login page is case sensitive",
    "WLAN\nNetz: Heimnetz\nSeriennummer: 4471 0938 2217 6650",
    "combination of 3 left shifts and 2 right shifts",
    "needs GetSecretValue on arn:aws:secretsmanager:eu-west-1:350676918348:secret:prod/shop/db",
    "Lösenordet byts automatiskt var 60:e dag",
    '{"user":"kim","password":"***","ip":"10.42.4.177","port":5432}',
    'System.console().readPassword("Password: ").toString();',
    're.compile(r"(api[_-]?key|secret)\\s*[:=]\\s*[\'\\"]?([A-Za-z0-9_\\-]{16,})")',
]


@pytest.mark.parametrize(("text", "secret"), SECRET)
def test_a_secret_is_recognised_by_its_context(text: str, secret: str) -> None:
    assert secret not in Redactor(KINDS).text(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_text_that_resembles_such_a_secret_stays(text: str) -> None:
    assert Redactor(KINDS).text(text) == text


def test_each_anchor_is_found_at_any_position() -> None:
    for anchor in sorted(Anchors.bits):
        text = f"x {anchor} ({anchor}) 1{anchor}2\n{anchor}"
        of = Anchors(anchor)
        assert positions_of(text, anchor) == of.positions(make_text(text)), anchor
