# ruff: noqa: E501 - lines stay lines
"""A secret near its name, however the two are joined; codes of digits; recovery codes; stored hashes. Values are random."""

import random
import string
from collections.abc import Callable

import pytest

from clawctl.privacy.finders import KINDS
from clawctl.privacy.redaction import Redactor

ALNUM = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
DEFAULT = [kind for kind in KINDS if kind not in ("email", "phone")]
ROUNDS = 6
Draw = random.Random
Make = Callable[[Draw], str]


def run(length: int, alphabet: str = ALNUM) -> Make:
    return lambda draw: "".join(draw.choices(alphabet, k=length))


def typed(draw: Draw) -> str:
    """As people choose passwords: a name, digits and a sign, in some order."""
    name = draw.choice(["Juventus", "Bergsee", "Rosalie", "Falcon", "Matilda", "Snowdon"])
    number = str(draw.randrange(1960, 2026))
    return draw.choice(
        [f"{name}{number}!", f"*{name}-{number}", f"{name.lower()}#{number}x", f"{number}{name}_?", f"_{name}{number}-"]
    )


def generated(draw: Draw) -> str:
    letters = [draw.choice(group) for group in ("qxz", "KVW", "37", "%^", "jk", "BX", "59", "mw", "+~", "RT")]
    draw.shuffle(letters)
    return "c" + "".join(letters) + "8"


def key(draw: Draw) -> str:
    return run(18)(draw) + "x7Q" + run(19)(draw)


pin, puk, long_hex = run(4, string.digits), run(8, string.digits), run(64, "0123456789abcdef")
pair: Make = lambda draw: run(4, LOWER)(draw) + "7-" + run(5, LOWER)(draw)  # noqa: E731 - as the others
dial: Make = lambda draw: "-".join(f"{draw.randrange(10, 60)}" for _ in range(3))  # noqa: E731

LINES: list[tuple[Make, str]] = [
    # joined by words, brackets, calls and comments
    (typed, "try {} as the password"), (typed, '"{}" should be the root password'), (typed, "its {} (the password)"), (typed, "creds for staging: qa_user {}"),
    (typed, "unlock the vault using {}"), (generated, "fyi: prod db pw changed to {} this morning"), (typed, "My films: marta@example.com / {}"),
    (key, 'let key = "{}"; // api key for the weather service'), (key, "const t = jwt.sign({ sub: user.id }, '{}', { expiresIn: '1h' });"),
    (key, "crypto.createCipheriv('aes-256-cbc', '{}', iv)"), (long_hex, 'AES.new(bytes.fromhex("{}"), AES.MODE_GCM)'), (key, 'Mac.init(new SecretKeySpec("{}".getBytes(), "HmacSHA256"))'),
    (generated, "cy.get('#password').type('{}')"), (typed, "await page.fill('input[name=\"password\"]', '{}');"), (typed, "driver.find_element(By.ID, 'password').send_keys('{}')"),
    (typed, "User.objects.create_superuser('admin', 'a@b.c', '{}')"), (key, "SSID 'Fritz!Box 7590', key {}"), (key, "use token {} for the staging API"),
    # on other lines
    (run(32, "0123456789abcdef"), "> Jenkins initial admin password:\n>\n> {}"), (typed, "Subject: VPN password\n\nHi Marta,\n\n{}\n\nRegards"), (typed, "> Password for the zip?\n{}"),
    (typed, "[10:42] ben: whats the netflix login\n[10:43] kim: same as always, {}"), (key, "The api key you asked for:\n```\n{}\n```"), (key, "token below, expires friday\n{}"),
    (key, ">>> os.environ['API_KEY']\n'{}'"), (typed, "Wi-Fi password for guests\n{}"), (key, "Password reset for user elastic successfully completed.\nNew value: {}"),
    (typed, " id | username | password \n----+----------+----------\n  1 | admin    | {}\n(1 row)"), (generated, "NAME      PASSWORD        ROLE\nroot      {}    admin"),
    # codes
    (pin, "The code for the alarm is {}, please arm it"), (pin, "Le code PIN de ma carte est {}"), (pin, "door code {}#, side entrance"), (pin, "New SIM arrived: PIN {}, keep it"),
    (puk, "PIN 1234, PUK {}"), (dial, "the safe combination is {}"), (dial, "gym locker {} is my combination"), (run(3, string.digits), '{"exp":"04/28","cvc":"{}"}'), (pin, "Door keypad: press * then {} then #"),
    (pin, "il codice del cancello è {}"), (pin, "O código do alarme é {}"), (run(16, "123456789"), "the sticker says: Wi-Fi key {}"),
    # recovery codes
    (pair, "Wiederherstellungscode: {}"), (pair, "Código de recuperación: {}"), (pair, "Votre code de secours est {}"), (pair, "リカバリーコードは{}"),
    (lambda draw: "-".join(run(6, string.digits)(draw) for _ in range(8)), "BitLocker recovery key: {}"),
    # stored hashes
    (lambda draw: "$6$" + run(12)(draw) + "$" + run(86)(draw), "alice:{}:19700:0:99999:7:::"), (lambda draw: "$2b$12$" + run(53)(draw), "admin:{}"),
    (lambda draw: "$y$j9T$" + run(22)(draw) + "$" + run(43)(draw), "root:{}:19801:0:99999:7:::"), (lambda draw: "$argon2id$v=19$m=65536,t=3,p=4$" + run(22)(draw) + "$" + run(43)(draw), "hash {}"),
    # forms and formats
    (key, "https://{}:@api.example-shop.com/v1/orders"), (generated, 'user = "bob:{}"'), (key, "::add-mask::{}"), (lambda draw: "1/" + run(16, "123456789")(draw) + ":" + run(32, "0123456789abcdef")(draw), "asana {}"),
    (lambda draw: run(38)(draw) + "x7", "AKIAQ7XK2PZM9RTW4VBN {}"), (lambda draw: "cio" + run(32)(draw), "publish with {}"), (lambda draw: "1//0g" + run(60)(draw), "refresh: {}"),
    (typed, "mosquitto -a -p {}"), (typed, 'reg add HKCU\\x /v Password /d "{}"'), (typed, '{"u":"kim","p":"{}"}'),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line"), LINES, ids=[line.splitlines()[0][:48] for _, line in LINES])
def test_a_random_secret_is_redacted_wherever_its_name_is(make: Make, line: str) -> None:
    redactor, draw = Redactor(DEFAULT), random.Random(line)
    values = [make(draw) for _ in range(ROUNDS)]
    assert [value for value in values if value in redactor.text(line.replace("{}", value))] == []


@pytest.mark.parametrize(
    "line",
    ["Backup codes:\n1. {}\n2. {}\n3. {}", "Here are your recovery codes: {}, {}, {} and {}", "recovery codes\n\n```\n{}\n{}\n```", "Discord backup codes: {} {} {}"],
)  # fmt: skip
def test_every_code_of_a_list_is_taken_out(line: str) -> None:
    redactor, draw = Redactor(DEFAULT), random.Random(line)
    for make in (pair, lambda draw: run(4, string.digits)(draw) + " " + run(4, string.digits)(draw)):
        text, values = line, []
        while "{}" in text:
            values.append(make(draw))
            text = text.replace("{}", values[-1], 1)
        assert [value for value in values if value in redactor.text(text)] == []


HARMLESS = """
exit code 4471 means the worker was killed
HTTP error code: 10054
zip code 90210, area code 415
promo code SUMMER2024 is valid until Friday
Response code 2000 means OK in this API
The PIN header on the board has 40 pins, GPIO 17 is pin 11
The PIN diode has a capacitance of 1200 pF
The pin count is 144 in the LQFP package
Pin the dependency to 4.17.21
code review took 4500 seconds
Two-factor codes are sent by SMS and expire after 300 seconds.
A combo of 3-4-5 hits
combination of 12, 14 and 16 pt fonts
Gate 4471 is on the second floor
alarm triggered at 04:47, sensor 1021 in the garage
login took 4471 ms
backup job 88123 finished, recovery point 2026-01-04T10:00:00Z
?code=4711&state=xyz
Passwords are hashed with argon2id (m=65536, t=3, p=4).
gpg: key 3AA5C34371567BD2: public key "Bob <bob@example.com>" imported
password reset link sent to k***@example.com
Key: node-modules-v4-9fceb02d0ae598e95dc970b74767f19372d61af8
Cache restored from key: Linux-node-9fceb02d0ae598e95dc970b74767f19372d61af89fceb02d0ae598e95dc970b7
AC9fceb02d0ae598e95dc970b74767f193 is the account SID, not the token
input[type="password"]:focus{outline:2px solid #1a2b3c}
password: z.string().min(12).max(128),
fn verify_password(hash: &str, pw: &[u8]) -> Result<bool, Error>
kim:x:1001:1001:Kim,,,:/home/kim:/bin/bash
num_image_tokens = num_patches // (merge_size**2)
Failed password for invalid user admin from 203.0.113.7 port 40022 ssh2
Accepted publickey for deploy from 10.0.0.4 port 51122 ssh2: RSA SHA256:q7Zt2Lw9Xc4Vb8Nm3Kp6Rj1Hd5Gs0Fa7Zt2Lw9Xc4
invalid token in session 9fceb02d0ae598e95dc970b74767f193
the access token for request 8f3a2c1b-4d5e-6f70-8192-a3b4c5d6e7f8 expired
KeyError: 'access_token' at 0x7f3a2c1b8d90
object key: uploads/2026/01/a8f3c2e1-report.pdf
primary key 9fceb02d0ae598e9
secret/tls-cert-2026 deleted, pod auth-token-7d4b9c6f5-x8k2p running
pad_token_id=151643, eos_token_id=151645
claude-sonnet-4-5-20250929 took 44.71s for 18,422 tokens
seed = 1234567
git config user.signingkey 3AA5C34371567BD2
security find-identity -v -p codesigning
Cookie: _ga=GA1.2.1234567890.1234567890
db_password: ENC[AES256_GCM,data:q7Zt2Lw9Xc4Vb8Nm3Kp6Rj1H,iv:d5Gs0Fa7Zt2Lw9Xc4Vb8,tag:Nm3Kp6Rj1Hd5,type:str]
Wi-Fi 6E supports 6 GHz channels, WPA3 is required
token-level F1 87.44, exact match 79.12
""".strip().splitlines()


@pytest.mark.parametrize("line", HARMLESS)
def test_numbers_ids_and_code_near_such_a_word_are_left_alone(line: str) -> None:
    assert Redactor(DEFAULT).text(line) == line
