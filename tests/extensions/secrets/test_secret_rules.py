"""What is a secret by its form, its name or its words, and what only resembles one."""

import base64
import random
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from clawctl.config import Recipe
from clawctl.extensions.secrets import entropy, is_secret_under, passes_luhn
from clawctl.extensions.secrets.text import folded
from clawctl.privacy.finders import KINDS
from clawctl.privacy.redaction import Redactor
from scripts.benchmarks.labelled_lines import labelled_lines
from scripts.benchmarks.labelled_templates import HALVES, lines_of
from scripts.benchmarks.redaction import rest_of

KEY = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2
PASSWORD = "hunter" + "2!"
ALWAYS = Recipe().privacy.redact


def redacted(text: str, *kinds: Any) -> str:
    return Redactor(kinds or ALWAYS).text(text)


def test_the_labelled_lines_are_classified_correctly() -> None:
    """The benchmark's check with a separate seed. A failure names missed secrets and false positives."""
    redactor = Redactor(ALWAYS)
    lines = labelled_lines(500, seed=11)
    assert sum(line.secret is not None for line in lines) == 250
    missed = [line.kind for line in lines if line.secret and rest_of(line.secret, redactor.text(line.text), line.text)]
    wrong = [line.text for line in lines if not line.secret and redactor.spans(line.text)]
    assert len(missed) <= 5, missed
    assert len(wrong) <= 5, wrong


@pytest.mark.parametrize("half", HALVES)
def test_both_halves_of_the_templates_pass_their_bars(half: str) -> None:
    """The held-out half is only measured: do not change a rule for one of its templates."""
    redactor = Redactor(ALWAYS)
    lines = lines_of(half, 2, seed=4)
    missed = [line.kind for line in lines if line.secret and rest_of(line.secret, redactor.text(line.text), line.text)]
    wrong = [line.kind for line in lines if not line.secret and redactor.spans(line.text)]
    assert len(missed) <= 0.05 * sum(line.secret is not None for line in lines), missed if half == "tuned" else len(missed)
    assert len(wrong) <= 0.01 * sum(line.secret is None for line in lines), wrong if half == "tuned" else len(wrong)


def test_recorded_messages_of_agents_cause_no_false_positive() -> None:
    redactor = Redactor(ALWAYS)
    for path in sorted((Path(__file__).parents[2] / "recordings").rglob("*.json")):
        text = path.read_text()
        assert redactor.spans(text) == [], path
        assert redactor.value(orjson.loads(text)) == orjson.loads(text), path


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"password = '{PASSWORD}'", "password = '[redacted:password]'"),
        (f"postgres://ann:{PASSWORD}@db/x", "postgres://ann:[redacted:password]@db/x"),
        ("card 4111-1111-1111-1111.", "card [redacted:card]."),
        ("card 4111-1111-1111-1112.", "card 4111-1111-1111-1112."),  # fails the checksum
        ("Authorization: Basic YW5uOnB3", "Authorization: Basic [redacted:token]"),
        ("basic understanding of physics", "basic understanding of physics"),
        ("password: string", "password: string"),
        ("password = getpass()", "password = getpass()"),
    ],
)
def test_only_the_secret_is_taken_out(text: str, left: str) -> None:
    assert redacted(text) == left


HEX = "9f86d081884c7d65" + "9a2feaa0c55ad015"
MIXED = "q7Zt2Lw9Xc4Vb8" + "Nm3Kp6Rj1Hd5Gs0Fa"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"use zorg_live_{MIXED} there", f"zorg_live_{MIXED}"),
        (f"use zorg_{MIXED} there", f"zorg_{MIXED}"),
        (f"zorg_{HEX} is the one", HEX),
        ("sdk-6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e", "6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e"),
        (f"Authorization: Zorg {MIXED}", MIXED),
        (f"-H 'authorization: ZorgKey {HEX}'", HEX),
        (f'Authorization: Digest username="ann", realm="x", response="{HEX}"', HEX),
        ("password=p%40ss%21w0rd%23", "p%40ss%21w0rd%23"),
        ("body=%7B%22password%22%3A%22hunter2!x%22%7D", "hunter2!x"),
        (f"api_key = '{MIXED * 20}'", MIXED * 20),
        (f"client_secret={MIXED * 12}", MIXED * 12),
        ("export BUNDLE_GEMS__ZORG__COM=ann:hunter2x9", "hunter2x9"),
        (f"HOST_LINE={HEX[:8]}:{HEX[:16]}", f"{HEX[:8]}:{HEX[:16]}"),
        (f"const c = new Zorg('{MIXED}')", MIXED),
        (f'zorg.init("{HEX}", {{}})', HEX),
        (f"zorg login --with {MIXED}", MIXED),
        ("5Kb8kLf9zgWQnogidDA76MzPL6TsZZY36h" + "WXMssSzNydYXYB9KF", "5Kb8kLf9zgWQnogidDA76MzPL6TsZZY36h" + "WXMssSzNydYXYB9KF"),
        (f'{{"kty": "EC", "crv": "P-256", "d": "{MIXED}{MIXED[:12]}"}}', MIXED),
        ("TOTP seed: JBSW Y3DP EHPK 3PXP", "JBSW Y3DP EHPK 3PXP"),
        (f'<machineKey validationKey="{HEX.upper()}" decryption="AES"/>', HEX.upper()),
        (f"https://zorg.example.org/hooks/{MIXED}", MIXED),
        (f"https://chat.zorg.org/services/T0AB12CD3/B0AB12CD4/{MIXED}", MIXED),
        (f"https://api.zorg.org/bot123456789:{MIXED}/send", MIXED),
        ("keytool -list -storepass blauwolke", "blauwolke"),
        ("openssl x -passphrase hunter2!", "hunter2!"),
        ("echo 'ann:hunter2!' | sudo chpasswd", "hunter2!"),
        ('new NetworkCredential("ann", "hunter2!")', "hunter2!"),
        ('ConvertTo-SecureString "hunter2!" -AsPlainText -Force', "hunter2!"),
        ("app.use(session({ secret: 'keyboard cat 7', resave: false }))", "keyboard cat 7"),
        ("Driver=x;UID=ann;PWD={hunt;er2!};", "hunt;er2!"),
        ("network={ psk=hunter2wolke9 }", "hunter2wolke9"),
        ("You can log in with ann / hunter2!x9", "hunter2!x9"),
        ("The PIN for the door is 4821", "4821"),
        ("password = 'hun' + 'ter' + '2!x9'", "ter"),
        ("password = 'hun' + 'ter' + '2!x9'", "2!x9"),
        (f'k = "zorg_" + "live_" + "{MIXED[:12]}" + "{MIXED[12:]}"', MIXED[12:]),
    ],
)
def test_a_secret_is_known_by_its_form_whoever_issued_it(text: str, secret: str) -> None:
    assert rest_of(secret, redacted(text)) == "" if len(secret) > 4 else secret not in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        ": ${DB_PASSWORD:?Set DB_PASSWORD2 first!}",
        'key="${API_TOKEN?is1 not set}"',
        "type LoginPassword = Brand<string, 'x1'>;",
        "type Secret = Opaque<Password2>",
        f"TWILIO_ACCOUNT_SID=AC{HEX}",
        f"call_{MIXED} returned",
        f"msg_{HEX} chatcmpl-{MIXED} resp_{HEX} req_{MIXED} toolu_{MIXED}",
        f"commit-{HEX}12345678 build_{HEX}",
        f"image sha256:{HEX}{HEX}",
        "pod web-7d9f8b6c5d-x2x4q restarted in session 6f1c2d3e-4a5b-4c6d-8e7f-901a2b3c4d5e",
        "get_user_by_MyLongCamelCaseClassName2With3Digits()",
        "a new RuntimeError('something_long_with_words_1_and_more')",
        "https://docs.example.com/en/webhooks/webhook-events-and-payloads-2024",
        "GPIO pin 17 is 3300 mV; pin: 1024",
        "print('ab' + 'cd12' + 'ef')",
        f"new Uuid('{HEX}') and ObjectId('{HEX}')",
        "Authorization: Bearer <token>",
        "git log --author 4f66ad9a:src/main.py",
    ],
)
def test_text_that_resembles_a_secret_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    "command",
    [
        "$ pass show mail/ann",
        "vault kv get -field=password secret/db",
        "ann@host:~/x$ gh auth token",
        "security find-generic-password -s mail -w",
        '$ echo "$DB_PASSWORD"',
        "# cat /run/secrets/db_password",
        "PS C:\\> op read op://Prod/db/password",
        "$ cd infra && terraform output -raw admin_password",
        "$ jq -r .password config.json",
        "$ kubectl -n db get secret app -o jsonpath='{.data.password}' | base64 --decode",
        "$ aws ssm get-parameter --name /db/pw --with-decryption --output text",
        "$ sudo printenv API_TOKEN",
    ],
)
def test_the_output_of_a_command_that_prints_secrets_is_redacted(command: str) -> None:
    value = "q8Lm2pZxw7Kd" + "4vTn9R"
    assert redacted(f"{command}\n{value}\ndone") == f"{command}\n[redacted:password]\ndone"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("define( 'NONCE_SALT',       'aB3 <k>!@%x;|~^(q2 7Lm?z9 K.p&w#1 vN8*e$R' );", "aB3 <k>!@%x;|~^(q2 7Lm?z9 K.p&w#1 vN8*e$R"),
        (f'{{"key":"{HEX}","username":"ann"}}', HEX),
        (f'{{"username":"ann","key":"{HEX}"}}', HEX),
        ("uri ldap://x\nbindpw u=hunter2Wolke", "u=hunter2Wolke"),
        ("snmpwalk -v3 -u ops -a SHA -A hunter2hunter -x AES h", "hunter2hunter"),
        (f"mc alias set s3 https://s3.example.org minio {MIXED}", MIXED),
        ("Passphrase for backup.gpg: walnut-lantern-oyster", "walnut-lantern-oyster"),
        ("La contraseña del router de la casa es !perro_Gato77", "!perro_Gato77"),
        ("Backup codes:\n1. 83jd-92kf\n2. zzxy-abcd\n3. 0s9d-1k2j", "zzxy-abcd"),
        ("| db | root | e8!GXJ6SXsnJ | password rotated |", "e8!GXJ6SXsnJ"),
        ("pass_phrase=M@tild@!899", "M@tild@!899"),
        (f"use sk-proj-{MIXED}{MIXED}\n> {MIXED[::-1]}\nok", MIXED[::-1]),
    ],
)
def test_a_secret_is_known_by_the_tool_that_reads_it(text: str, secret: str) -> None:
    assert rest_of(secret, redacted(text), text) == ""


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("sign in with the initial password Wlcm-73-Otter and change it", ["Wlcm-73-Otter"]),
        ("o cartão é 5277 0913 4486 2201, validade 09/28, código 088, às 22h", ["5277 0913 4486 2201", "088"]),
        ("name,login,initial_password\nOlu,olu,plum-tart-9\nMats,mats,xx_dragon_xx", ["plum-tart-9", "xx_dragon_xx"]),
        ('Environment="RESTIC_PASSWORD=the owls sleep at noon 12"', ["the owls sleep at noon 12"]),
        ('export BACKUP_PASSWORD="river stone and bread"', ["river stone and bread"]),
        ("meeting id 831 5520 7714 passcode c7arinet.", ["c7arinet"]),
        ("the wifi at the cabin is brombeere48, the bins are out", ["brombeere48"]),
        ("network_key: [117, 4, 231, 88, 19, 202, 64, 250, 33, 9, 178, 141, 76, 215, 6, 99]", ["117, 4, 231"]),
        ("github 2fa\n\n1. 9de98-790d8\n2. c7665-603a7\n3. cc5ba-03d65", ["9de98-790d8", "c7665-603a7", "cc5ba-03d65"]),
        ("您的验证码804137，5分钟内有效", ["804137"]),
        ("root@pam!monitor=5b0f2fa1-08ce-43d3-a445-673ed9aa520a", ["5b0f2fa1-08ce"]),
        ("the wifi network is mycasa33, and the wifi is slow today", []),
        ("2FA is on since 2021-03-04; the password md5sum differs", []),
        ('PASSWORD_HINT="three words or more"', []),
        ("pan_ids: [117, 4, 231, 88, 19, 202, 64, 250, 33, 9, 178, 141, 76, 215, 6, 99]", []),
        ("hmac.new(bytes.fromhex('4a656665'), b'what', 'sha256')", []),
        ("Key = 4a656665, HMAC-SHA-256 = 5bdcc146bf60754e6a042426089575c75a003f08", []),
    ],
)
def test_secrets_of_lists_settings_and_notes_are_found_and_what_looks_like_them_stays(text: str, secrets: list[str]) -> None:
    left = redacted(text)
    assert not any(secret in left for secret in secrets)
    assert secrets or left == text


def test_a_key_beside_a_user_name_is_a_secret_in_a_value_of_json_too() -> None:
    assert Redactor(KINDS).value({"username": "ann", "key": HEX}) == {"username": "ann", "key": "[redacted:password]"}
    assert Redactor(KINDS).value({"username": "ann", "key": "ArrowLeft"}) == {"username": "ann", "key": "ArrowLeft"}


@pytest.mark.parametrize(
    "text",
    [
        "$ grep -rn api_key src | wc -l\n42",
        "$ cat token.ts\nexport",
        f"$ echo $GITHUB_SHA\n{HEX}",
        f"we echo what the password page shows\n{HEX}",
        "$ kubectl get secrets\nNAME",
        "| test_password | a1b2c3d4e5f6 | passed |",
        "Error codes:\nE10012\nE10023",
        "Recovery codes: store them in a safe place",
        "Content-Security-Policy: script-src 'self' 'sha256-sxeNnmTs120MNya8HbgFmFAZNQPcWMJ5T42aOpSsmnQ='",
        'etag: W/"ea04214a-2CHMvZMLWNBdsU0hLrYDvQ=="',
        '{"kty":"RSA","kid":"z5v-qnsy0cw32tYSOFKaspYBd3ZPpGv8HPoy8Ag5lUD"}',
        f"NEXT_PUBLIC_STRIPE_PUBLISHABLE_KEY=pk_live_51{MIXED}",
        f"spec:\n  encryptedData:\n    password: Ag{MIXED * 10}",
    ],
)
def test_public_values_in_the_position_of_a_secret_stay(text: str) -> None:
    assert redacted(text) == text


def test_people_are_an_option() -> None:
    text = "write ann@example.com or call +49 170 1234567, or (555) 123-4567"
    assert redacted(text) == text
    assert redacted(text, "email", "phone") == "write [redacted:email] or call [redacted:phone], or [redacted:phone]"


def test_a_private_key_without_its_end_is_taken_out_as_far_as_it_goes() -> None:
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC" * 3
    assert redacted(f"-----BEGIN PRIVATE KEY-----\n{body}") == "[redacted:private_key]"
    assert redacted("look for -----BEGIN PRIVATE KEY----- in it") == "look for -----BEGIN PRIVATE KEY----- in it"


def test_pictures_are_no_text() -> None:
    picture = "data:image/png;base64,iVBORw0KGgo+" + "AKIA" + "ABCDEFGHIJKLMNO7" * 4
    assert redacted(picture) == picture
    assert redacted(f"data:image/png;base64,{KEY}") == "data:image/png;base64,[redacted:api_key]"
    assert redacted(f"data:image/png;base64,iVBORw0KGgo= and {KEY}").endswith("and [redacted:api_key]")


def test_the_checksum_of_cards_by_hand() -> None:
    # 79927398713: from the right 3+2+7+(16-9)... the textbook's number; one digit more or less fails
    assert passes_luhn("79927398713")
    assert not passes_luhn("79927398712")


def test_entropy_by_hand() -> None:
    assert entropy("aaaa") == 0
    assert entropy("aabb") == 1
    assert entropy("abcd") == 2


def test_a_name_alone_makes_no_secret() -> None:
    assert is_secret_under("api_key", "a1b2c3d4e5f6g7h8", quoted=True)
    assert not is_secret_under("primary_key", "a1b2c3d4e5f6g7h8", quoted=True)
    assert not is_secret_under("token_type", "a1b2c3d4e5f6g7h8", quoted=True)
    assert not is_secret_under("secret", "my-db-secret-2", quoted=True)


@pytest.mark.parametrize("nothing", ["null", "true", "false", "None", "undefined"])
@pytest.mark.parametrize("template", ['{{"password":{},"token":""}}', "{{password:{},token:''}}", '{{"api_key":{},"name":"abc"}}'])
def test_a_constant_beside_a_secret_name_is_no_secret_in_compact_json(nothing: str, template: str) -> None:
    text = template.format(nothing)
    assert redacted(text) == text


def test_an_unquoted_value_ends_where_the_next_name_of_compact_json_begins() -> None:
    assert '"token":""' in redacted('{"password":8812447091,"token":""}')


@pytest.mark.parametrize("width", [40, 64, 76])
def test_a_jwt_that_a_mail_program_wrapped_is_redacted_to_its_end(width: int) -> None:
    rng = random.Random(width)
    parts = [base64.urlsafe_b64encode(rng.randbytes(n)).decode().rstrip("=") for n in (75, 47)]
    token = f"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.{'.'.join(parts)}"
    wrapped = "\n".join(token[at : at + width] for at in range(0, len(token), width))
    left = redacted(f"My token:\n\n{wrapped}\n\nWhy does it get a 403?")
    assert not any(line in left for line in wrapped.split("\n"))
    assert "Why does it get a 403?" in left


def test_lower_case_keeps_every_place() -> None:
    letters = [chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number < 0xE000]
    assert [letter for letter in letters if len(folded(letter)) != 1] == []
    assert len(folded("".join(letters))) == len(letters)
