"""A password is found whatever it consists of and however it is assigned. Code and placeholders next to its name stay."""

import json
from urllib.parse import quote

import pytest

from clawctl.privacy.finders import KINDS
from clawctl.privacy.redaction import Redactor

MADE_OF = {
    "letters and digits": ["falcon42", "Marble1987"],
    "words and a sign": ["Tiger!Lamp9", "apfel#Baum7"],
    "the beginning of a placeholder": ["Settlers#77", "Address99!x", "Putnam!1920", "Entertain$8", "Todorov#55", "Yourself!88"],
    "a dollar sign first": ["$uper!Man99", "$alamander9!", "$3cure#Me"],
    "joined words": ["blueTigerLamp", "Harbor-Lights", "moss-agate"],
    "brackets": ["Tiger(77)x!", "a[b]c!9Kz"],
    "a sign last": ["Lantern99!", "Lantern99)", "Lantern99?"],
    "a sign first": ["#Harvest77", "!Quick99z", "~Tilde88x", "=Equal9!q"],
    "digits": ["84013377", "190384"],
}
SET_AS = {
    "JSON": lambda value: json.dumps({"user": "bo", "password": value}),
    "YAML": lambda value: f'db:\n  password: "{value}"\n',
    "Python": lambda value: f"connect(host='h', password={value!r}, port=1)",
    "Terraform": lambda value: f'resource "x" "y" {{\n  password = "{value}"\n}}',
    "JavaScript": lambda value: f"const dbPassword = {json.dumps(value)};",
    "a variable": lambda value: f"export DB_PASSWORD='{value}'",
    "XML": lambda value: f'<user name="bo" password="{value}"/>',
    "a form": lambda value: f"user=bo&password={quote(value, safe='')}&go=1",
}


@pytest.mark.parametrize("made_of", MADE_OF)
def test_a_password_is_found_whatever_it_is_made_of(made_of: str) -> None:
    redactor = Redactor(KINDS)
    kept = [
        (way, value)
        for value in MADE_OF[made_of]
        for way, write in SET_AS.items()
        if value in redactor.text(write(value)) or quote(value, safe="") in redactor.text(write(value))
    ]
    assert kept == []


@pytest.mark.parametrize(
    "text",
    [
        "wpa_passphrase=bluebird-on-oak", "helm upgrade a b --set db.password=Saffron-Hill --wait",
        "jdbc:mysql://h/db?user=root&password=correcthorse", "the password is 84013377 and the port is 22",
        "echo -n 'LpaKoJceXBH42IkQFU960mNh' | gh secret set DEPLOY_TOKEN",
        "| Service | API key |\n| --- | --- |\n| Maps | `msxI3k5flIphdRSgvSDCs0suUQAAKmz` |",
        "| host | password |\n|---|---|\n| db1 | Harbor-Lights |\n| db2 | 190384 |",
        "Key | Value\n--- | ---\nAPI secret | tgpYWplzkcgvlqsP18bSyT19lHi2DX2y", "the header is Basic c3ZjOlF1MWNrU2lsdmVyIQ==",
        "- name: DB_PASSWORD\n  value: juniper-Berry\n", "bw unlock M0untain!Goat --raw", "tool --password=moss-agate --host h",
        "define('DB_PASSWORD', 'kestrel7');",
    ],
)  # fmt: skip
def test_words_and_numbers_are_passwords_where_only_a_password_can_be(text: str) -> None:
    assert "[redacted:" in Redactor(KINDS).text(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "isRequired"}', 'errors: {password: "invalidCredentials"}', 'password: "user-password-field"',
        'password = "addPassword"', 'password: "set-me"', "password=replace-this-value", 'password: "yourpass"',
        "password=$PASS@host", 'password="$PASS"', "-p$MYSQL_PWD", "'password' => $user->getPassword(),",
        'password: "{{ .Values.db.password }}"', "?password=forgotten", "the password is Case-Sensitive", "password: 'min-length'",
        "the password changed from 190384 users", 'os.getenv("DB_PASSWORD", "missing")', 'print("DB_PASSWORD", "DB_USER")',
        "    'curlopt_pwd',\n    'curlopt_quote',\n    'curlopt_random_file2',\n",
        "names = [\n    'password',\n    'password_lock_time7',\n]", "client_key_passphrase,\nalpn_protocols2,\n",
        "password_changed_at: 2024-06-11T10:22:03Z", "password: ((db_password))", "key: Ed25519PrivateKey | Ed448PrivateKey",
        "Password for 'https://ann@git.example.com': ", "| option | type |\n|---|---|\n| password | read-only |",
    ],
)  # fmt: skip
def test_code_placeholders_and_labels_are_no_passwords(text: str) -> None:
    assert Redactor([kind for kind in KINDS if kind not in ("email", "phone")]).text(text) == text
