# ruff: noqa: E501 - lines stay lines
"""Secrets that people give a personal assistant: codes of digits, spoken codes, logins, passwords of words. Values are random."""

import random
import string
from collections.abc import Callable

import pytest

from clawctl.config import PrivacyConfig
from clawctl.extensions.secrets import lexicon
from clawctl.privacy.redaction import Redactor
from scripts.benchmarks.redaction import rest_of

ROUNDS = 6
Draw = random.Random
_SPOKEN = {
    "en": "zero one two three four five six seven eight nine", "de": "null eins zwei drei vier fünf sechs sieben acht neun",
    "fr": "zéro un deux trois quatre cinq six sept huit neuf", "es": "cero uno dos tres cuatro cinco seis siete ocho nueve",
    "pt": "zero um dois três quatro cinco seis sete oito nove", "it": "zero uno due tre quattro cinque sei sette otto nove",
    "nl": "nul een twee drie vier vijf zes zeven acht negen", "pl": "zero jeden dwa trzy cztery pięć sześć siedem osiem dziewięć",
    "tr": "sıfır bir iki üç dört beş altı yedi sekiz dokuz", "ru": "ноль один два три четыре пять шесть семь восемь девять",
    "uk": "нуль один два три чотири п'ять шість сім вісім дев'ять", "ar": "صفر واحد اثنين ثلاثة أربعة خمسة ستة سبعة ثمانية تسعة",
    "hi": "शून्य एक दो तीन चार पांच छह सात आठ नौ", "sv": "noll ett två tre fyra fem sex sju åtta nio",
}  # fmt: skip


def digits(count: int) -> Callable[[Draw], str]:
    """Digits that are no year, no time and no well-known code."""

    def make(draw: Draw) -> str:
        while True:
            value = draw.choice("3456789") + "".join(draw.choices(string.digits, k=count - 1))
            if value not in ("4321", "654321") and len(set(value)) > 1:
                return value

    return make


def spoken(language: str) -> Callable[[Draw], str]:
    return lambda draw: " ".join(_SPOKEN[language].split()[number] for number in draw.sample(range(10), 4))


def grouped(draw: Draw) -> str:
    return "-".join(f"{draw.randrange(32, 100)}" for _ in range(3))


def native(zero: str) -> Callable[[Draw], str]:
    return lambda draw: "".join(chr(ord(zero) + int(digit)) for digit in digits(4)(draw))


def chosen(draw: Draw) -> str:
    return draw.choice(["Otter", "Packet", "Girasol", "Kotek"]) + draw.choice(["Lampe", "Crane", "Azul"]) + digits(3)(draw)


def fours(draw: Draw) -> str:
    return " ".join("".join(draw.choices("bcdfghjklmnpqrstvwxz", k=4)) for _ in range(4))


def serial(draw: Draw) -> str:
    return "-".join(
        "".join(draw.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=3)) + draw.choice(string.digits) + draw.choice("XYZ") for _ in range(3)
    )


def session(draw: Draw) -> str:
    return "".join(draw.choices("0123456789abcdef", k=38)) + "a1"


def seed(draw: Draw) -> str:
    return "".join(draw.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", k=32))


def disk(draw: Draw) -> str:
    return "-".join(f"{draw.randrange(100000, 700000)}" for _ in range(8))


FOUR, FIVE, SIX = digits(4), digits(5), digits(6)
LINES: list[tuple[Callable[[Draw], str], str]] = [
    # the word before the number
    (FOUR, "Can you save that the PIN for my Barclays card is {}?"), (FOUR, "front door code {}, and the cleaner comes at nine"), (digits(8), "SIM PUK is {}"),
    (digits(3), "CVV {}, expires 11/29"), (grouped, "the safe opens with {} right-left-right"), (FIVE, "Alarm code {}, you have 30 seconds"), (SIX, "my phone unlock code is {}"),
    (FOUR, "Der Türcode vom Ferienhaus ist {}#"), (SIX, "Die TAN für Ihre Überweisung über 249,00 EUR lautet {}."), (FOUR, "Wohnungstür unten: Code {}#, oben klingeln"), (FOUR, "Die Geheimzahl der Karte: {}"),
    (FOUR, "le code de la porte d'entrée est le {}"), (SIX, "pour entrer dans le coffre-fort de l'hôtel j'ai mis {}"), (FOUR, "le code PIN de ma carte SIM est {}"), (FOUR, "digicode {}, 3e étage"),
    (FOUR, "El código de la alarma es {}"), (FOUR, "mi pin del cajero es {}"), (SIX, "Tu código de verificación es {}"), (FOUR, "el candado de la bici es {}, no lo olvides"),
    (FOUR, "o código do portão é {}"), (SIX, "a senha do celular é {}"), (FOUR, "PIN do cartão da Caixa: {}"), (FOUR, "il codice del cancello è {}"), (FOUR, "la combinazione del lucchetto è {}"), (FIVE, "il codice dell'allarme è {}"),
    (FOUR, "de pincode van mijn zakelijke pas {} is geheim"), (FOUR, "de code van de voordeur is {}"), (FIVE, "Alarm eraf met {}"), (FOUR, "sleutelkluisje naast de schuur: {}."),
    (FOUR, "kod do bramy {}#, do klatki obok"), (FOUR, "PIN do karty to {}"), (FOUR, "kartımın şifresi {}"), (FOUR, "apartman kapı şifresi {} kare"), (FOUR, "пин-код карты {}"), (FOUR, "код домофона {}"), (FOUR, "ПІН-код картки {}"),
    (FOUR, "キャッシュカードの暗証番号は{}です"), (SIX, "银行卡取款密码{}"), (FOUR, "小区门禁密码改成{}#了"), (FOUR, "門口密碼 {}"), (SIX, "현관 비밀번호는 {}이고 별표"), (FOUR, "رمز الباب {}"), (FOUR, "الرقم السري للبطاقة هو {}"), (FOUR, "मेरा एटीएम पिन {} है"),
    (FOUR, "kód od vrat je {}"), (FOUR, "portkoden är {}"), (FOUR, "PIN-koden til kortet er {}"), (FOUR, "koden til døren er {}"), (FOUR, "kortin tunnusluku {}"), (FOUR, "το PIN της κάρτας είναι {}"), (FOUR, "הקוד לדלת הוא {}"),
    (FOUR, "a kapukód {}"), (FOUR, "codul de la interfon este {}"), (SIX, "mã PIN thẻ ngân hàng: {}"), (FOUR, "kode pintu {}"), (FOUR, "รหัสประตู {}"), (native("٠"), "رمز الخزنة {}"), (native("०"), "मेरा एटीएम पिन {} है"), (native("۰"), "رمز کارت من {}"),
    # behind it, below it, in a form
    (FOUR, '{"intent":"disarm","slots":{"pin":"{}"}}'), (FOUR, "alarm_control_panel:\n  - platform: manual\n    code: {}\n"), (FOUR, "Hola: te paso las claves. Portal: {}. Cualquier cosa me llamas."), (digits(3), "die Prüfnummer auf der Rückseite der Karte ist {}"),
    # spoken
    (spoken("en"), "the pin for the new debit card is {} and don't tell Kevin"), (spoken("de"), "der Türcode ist {} und dann die Raute"), (spoken("fr"), "pour désactiver l'alarme tu tapes {} et tu attends"), (spoken("es"), "mi pin es {}"),
    (spoken("pt"), "a senha do alarme é {}, desliga antes"), (spoken("it"), "l'allarme si stacca con {} e poi cancelletto"), (spoken("nl"), "mijn pincode is {}"), (spoken("pl"), "kod do bramy to {}"), (spoken("tr"), "kasanın kodu {}"),
    (spoken("ru"), "код от подъезда {}"), (spoken("uk"), "код від хвіртки {}"), (spoken("ar"), "رمز الباب {}"), (spoken("hi"), "दरवाज़े का कोड {} है"), (spoken("sv"), "portkoden är {}"),
    # logins and disclosed passwords
    (chosen, "New one is {} (capital letter at the front)"), (chosen, "كلمة سر الواي فاي في البيت هي {}"),
    (lambda draw: draw.choice(["Lampewiese", "Sonnenhut", "Kirschbaum"]), "das Telefon-Kennwort bei der Telekom ist {}."), (lambda draw: draw.choice(["Матрёшкино", "Ромашка"]), "кодовое слово «{}»."),
    (lambda draw: draw.choice(["Pemberton", "Oberhuber"]), "mother's maiden name: {}"), (chosen, "await page.getByLabel('Password').fill('{}');"), (chosen, 'driver.find_element(By.ID, "password").send_keys("{}")'),
    # things
    (disk, "BitLocker recovery key:\n      {}\n"), (fours, "gmail app password for the scanner: {} (enter w/o spaces)"), (serial, "Steam key: {}"), (lambda draw: "k8w" + draw.choice(string.digits), "https://pan.example/s/1x 提取码: {}"),
    (session, "https://calendar.google.com/calendar/ical/a%40b.example/private-{}/basic.ics"), (chosen, "    Key Content            : {}\n"), (chosen, "uci set wireless.default_radio0.key='{}'"), (lambda draw: session(draw)[:16], "local_key: {}"),
    (lambda draw: f"{digits(4)(draw)} {digits(4)(draw)}", "SAVE YOUR BACKUP CODES\n\n1. {}     2. 8747 5069\n3. 6077 7583     4. 2704 1637\n"),
]  # fmt: skip


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor(PrivacyConfig().redact)


@pytest.mark.parametrize(("make", "line"), LINES, ids=[line.splitlines()[0][:48] for _, line in LINES])
def test_codes_that_a_person_discloses_are_found(redactor: Redactor, make: Callable[[Draw], str], line: str) -> None:
    draw = random.Random(line)
    drawn = [make(draw) for _ in range(ROUNDS)]
    kept = [secret for secret in drawn if rest_of(secret, redactor.text(line.replace("{}", secret)), line.replace("{}", secret))]
    assert kept == []


HARMLESS = """
error code {} on my dishwasher|exit code 137|HTTP status code 404 on every page|my zip code is 90210|The area code for Leeds is 0113|country code 0044|bar code 5901234123457|promo code {} at checkout
order code {} shipped today|sort code 20-00-00|GPIO pin 17 is 3300 mV|connect pin 4 to pin 1204|Pincode: 560034, Koramangala|Your PIN must have 4 digits|the PIN was changed in 2024|The code has 1200 lines
password length: 4096|reset your password within 3600 seconds|room 1204, door on the left|gate 22 opens at 1830|set an alarm for 06:45|door width 900 mm|card ending in {} was charged|bus {} leaves at 1205|flight {} to Rome
call 0800 123 4567 to open the gate|call 3939 if you forget the PIN|the lock costs 1200 euros|the house was built in 1987|token limit 4096|key 3 of the piano|the code for loop 123 is wrong|port 8080 is open, code is deployed|chess: 1. e4 e5, code {} of ECO
Fehlercode {} an der Waschmaschine|Postleitzahl 10115 Berlin|Zimmer {}, Code an der Rezeption|die PIN hat 4 Stellen|Alarm um 0630 Uhr|code postal 75011 Paris|code erreur {}|carte bancaire finissant par {}|código de error {}|habitación 1204, puerta derecha
código postal 01310-100|cartão com final {}|codice postale 20121|codice errore {}|postcode 1012 AB|foutcode {}|kod pocztowy 31-042|kod błędu {}|posta kodu 34710|hata kodu {}|почтовый индекс 101000|код ошибки {}|код товара 558201|поштовий індекс 01001|код помилки {}
エラーコード {}|郵便番号 1500001|ロッカー1204番|错误代码 {}|邮政编码 100080|银行卡限额5000元|오류 코드 {}|카드 한도 5000만원|الرمز البريدي 11564|رمز الخطأ {}|त्रुटि कोड {}|felkod {}|fejlkode {}|virhekoodi {}|password changed for user_id={}|postgres://${DB_USER}:${DB_PASSWORD}@${DB_HOST}:{}/app|if len(password) > {}:|assert puk == ({}, 7)
the passphrase was changed on 9 May 2024 at 21:14|your password expires on March 3, 2025|the code was sent to +31 ••• •••-{}|MAX_DOOR_CACHE_ENTRIES = {}|Respond(request, "text/plain", code=404)|key storage is billed from {} GiB|chybový kód {}|hibakód {}|cod de eroare {}
code: 4471|"code": 4471|lock_timeout=3600|PIN_COUNT = 4096|response code 4471|one two three four, I declare a thumb war, lock the door|- Flight: LH2485 / A320neo|km/h / mph|das Kennwort ist falsch|le mot de passe du site est obligatoire|maiden name field is required
- textbox "Password" [ref=e11]|var e={password:0,pass:1,token:2};return e|page.getByLabel('Email').fill('hello world')|{"name":"theme","value":"dark-mode-2"}|Steam key does not work, error 102|Print your 10 backup codes and keep them safe.|last 4 digits of the card: {}
"""


@pytest.mark.parametrize("line", [line for row in HARMLESS.strip().splitlines() for line in row.split("|")])
def test_a_number_of_another_sense_stays(redactor: Redactor, line: str) -> None:
    draw = random.Random(line)
    for _ in range(3):
        text = line.replace("{}", FOUR(draw))
        assert redactor.text(text) == text


@pytest.mark.parametrize("name", ["pin", "cvv", "door_code", "smsCode", "passcode", "card_pin"])
def test_a_code_in_the_arguments_of_a_call_is_found_by_its_name(redactor: Redactor, name: str) -> None:
    draw = random.Random(name)
    for value in (FOUR(draw), int("7" + FOUR(draw)[1:])):
        assert redactor.value({"step": 3, "form": {name: value}}) == {"step": 3, "form": {name: "[redacted:password]"}}


def test_numbers_under_other_names_stay_in_arguments(redactor: Redactor) -> None:
    said = {"code": 4471, "port": "5432", "zip_code": "10115", "error_code": 4711, "pin_count": 4096, "room": {"number": "1204"}}
    assert redactor.value(said) == said


def test_a_session_in_an_exported_cookie_is_found_in_nested_objects(redactor: Redactor) -> None:
    jar = {"cookies": [{"name": "sessionid", "value": "k29dkfj3mfla0", "path": "/"}, {"name": "theme", "value": "dark-mode-22"}]}
    clean = redactor.value(jar)
    assert [cookie["value"] for cookie in clean["cookies"]] == ["[redacted:password]", "dark-mode-22"]


def test_all_codes_of_a_sentence_are_found(redactor: Redactor) -> None:
    draw = random.Random(11)
    for _ in range(ROUNDS):
        first, second, third = SIX(draw), FOUR(draw), FOUR(draw)
        clean = redactor.text(f"Remember: front door code {first}, back gate {second}, garage {third}. The year was 1984.")
        assert clean.count("[redacted:password]") == 3
        assert clean.endswith("The year was 1984.")


def test_a_secret_of_four_characters_that_is_left_counts_as_missed() -> None:
    assert rest_of("4471", "the pin is 4471", "the pin is 4471") == "4471"
    assert rest_of("4471", "the pin is [redacted:password]", "the pin is 4471") == ""


def test_the_lists_of_words_are_found_by_their_own_words() -> None:
    """Each whole word of a list has the meaning of its list. A fold or split that loses a word fails here."""
    for meaning, block in lexicon.WORDS.items():
        for entry in block.split():
            word = entry.strip("=*")
            if word.isalpha() and word.isascii():
                assert lexicon.meaning_of(word) & meaning, (entry, meaning)
