# ruff: noqa: E501 - each case is one line
"""Secrets in ordinary prose are found by their shape and by the subject of the sentence. Names of the same shape stay."""

import pytest

from clawctl.config import PrivacyConfig
from clawctl.privacy.redaction import Redactor

TOLD = [
    ("The archive from the tax office opens with Heron77310KL, please unpack it", "Heron77310KL"),
    ("the new one is all one word: Bl@nket58$", "Bl@nket58$"),
    ("the NAS one is the same as the router one, which is copper-thimble-318", "copper-thimble-318"),
    ("it used to be my street, now it's 64Walnut*Drift. log in and pay the bill", "64Walnut*Drift"),
    ("sign in as nadia@post.example and then Velvet_Otter_58, the report is on the first page", "Velvet_Otter_58"),
    ("to get in use the admin login and type K0pf$tand91 when it asks", "K0pf$tand91"),
    ("Meld dich beim Konto an, es ist jetzt Dachs*Tonne48, und lade die Rechnung", "Dachs*Tonne48"),
    ("Der Tresor geht auf mit Laterne73190", "Laterne73190"),
    ("connecte-toi au portail avec Br1oche*207 et télécharge la facture", "Br1oche*207"),
    ("entra a la cuenta con usuario lola y pon Ventana9125# en el segundo campo", "Ventana9125#"),
    ("acessa a conta do banco com Girass0l#83 e vê o saldo", "Girass0l#83"),
    ("accedi al conto con Lamp@da5521 e scarica tutto", "Lamp@da5521"),
    ("log in op de router met Str00pwafel&19 en zet de poort open", "Str00pwafel&19"),
    ("zaloguj się na konto, wpisz Czapla*Rower61 i sprawdź saldo", "Czapla*Rower61"),
    ("Kata sandi router rumah Kopi_Melati_57, tolong simpan", "Kopi_Melati_57"),
    ("nenosiri la akaunti yangu ni Simba#Mlima82, ingia sasa", "Simba#Mlima82"),
    ("รหัสผ่านอีเมลคือ Lotus94Bamboo! ช่วยจดไว้", "Lotus94Bamboo!"),
    ("登录账号用 Panda#Bamboo73 就可以了", "Panda#Bamboo73"),
    ("зайди в аккаунт, теперь там Ромашка, введи Vetka*Reka95 и скачай счёт", "Vetka*Reka95"),
    ("hesaba giriş için Lale&Deniz64 yaz, sonra faturayı indir", "Lale&Deniz64"),
    ("my bank texted me just now, it says 640 182, type it before it expires", "640 182"),
    ("la banque m'a envoyé un sms, c'est 918273, tape-le vite", "918273"),
    ("the three digits on the back are 481", "481"),
    ("enter this setup key manually: qx4b mz7d kfp2 wj5t vr3n hd6y", "qx4b mz7d kfp2 wj5t vr3n hd6y"),
    ("the app password for my mail is ovzq mkdt wplr hjxb", "ovzq mkdt wplr hjxb"),
    ("char secret[16] = {'p', 'Q', '7', 'z', 'L', '2', 'w'};", "'p', 'Q', '7', 'z', 'L', '2', 'w'"),
    ("swipe from the card reader: ;4539148803436467=2805101123400001?", "4539148803436467=2805101123400001"),
    ("xxd of the signing key\n00000000: 7c1e a94f 03bb 52d8 e06a 9177 bd20 4c8f  |..O..R..j.w. L.\n", "7c1e a94f 03bb 52d8"),
    ("-JWT_SIGNING=qT7vXz0pLm4RwB9n\n+JWT_SIGNING=${JWT_SIGNING}", "qT7vXz0pLm4RwB9n"),
    ("yubikey slot 1 static: cbdukvfghijrtehnlbbtuvcd", "cbdukvfghijrtehnlbbtuvcd"),
    ("> PuTTY-User-Key-File-3: ssh-ed25519\n> Private-Lines: 1\n> kQ3LeU7arLdqWyGeEeoSInB7M7gb8c4Z\n> Private-MAC: 00", "kQ3LeU7arLdqWyGeEeoSInB7M7gb8c4Z"),
    ('Api("eu-west", "qT7vXz0pLm4RwB9n")  # second one is the secret', "qT7vXz0pLm4RwB9n"),
    ("me llegó un sms del banco, pon 559013 rápido", "559013"),
    ("the linkedin cookie li_at: AQEDATx9v1kF3mQAAABkZ7LpJc2", "AQEDATx9v1kF3mQAAABkZ7LpJc2"),
]  # fmt: skip

HARMLESS = [
    "Log in to the server marble-web-042 and restart nginx.",
    "The new branch is feature-kettle-431, please log in to the CI and run it again.",
    "the wifi is called Green_Falcon_22 and works in the whole house",
    "My username on the forum is Marble_Pepper_89, please change it in my account.",
    "The laptop runs Windows11! and the login works.",
    "The router is a FRITZ!Box7590, the alarm is an Ajax2000+.",
    "The admin panel of the router needs zod@^4.3.6 here",
    "type C4H8O2*2H2O in the search field of the account",
    "The bank statement is in Konto50400.pdf, open it with Acrobat2020",
    "Mi cuenta de Twitter es Marta_Lopez_89 y mi correo no funciona",
    "Das Konto gehört Anna_Meier_84 und die Bank weiß Bescheid",
    "Il mio account è Luca_Rossi_92, aggiungimi",
    "Le modèle du routeur est Archer5400X et la box est neuve",
    "Mijn rekening is NL91ABNA0417164300, de bank belt morgen",
    "Het slot is een Abus37000, de deur gaat niet open",
    "the alarm types are fire_smoke_11 and door_open_12 in the panel",
    "мой ник в аккаунте Sokol_Zima_77, не могу войти",
    "登录页面显示错误 E4001#2 怎么办",
    "the bank texted me on 2026-11-22 that page 4000 is closed, type a reply",
    "the app password is four groups: that must have some",
    "the year on the back is 1987",
    "char key[] = {'a', 'b'};",
    'print("the_answer_42", "Result2026")  # no secret here',
    "SMS costs went up to 4500 in total",
    "enter this setup key manually when the page asks you for it",
]  # fmt: skip


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(PrivacyConfig().redact)


@pytest.mark.parametrize(("text", "secret"), TOLD)
def test_a_secret_in_ordinary_prose_is_found(redactor: Redactor, text: str, secret: str) -> None:
    assert secret not in redactor.text(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_name_or_number_of_the_same_shape_stays(redactor: Redactor, text: str) -> None:
    assert redactor.text(text) == text
