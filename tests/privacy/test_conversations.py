"""A conversation is read in order, and what is hidden in its words is hidden in its ids."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from clawctl.config import PrivacyConfig, Recipe
from clawctl.privacy.prompt_ids import occurrences
from clawctl.privacy.redaction import Redactor
from scripts.benchmarks.conversations import ASKED, NOT_SECRET, rows
from tests.extension import needs
from tests.privacy.made import exchange

ALWAYS = Recipe().privacy.redact
KEY = "sk-" + "proj-" + "a1B2c3D4e5F6g7H8i9J0" * 2
Said = list[dict[str, Any]]


class Letters:
    """A tokenizer with one id per character."""

    def __init__(self) -> None:
        self.decoded = 0

    def __call__(self, ids: list[int]) -> str:
        self.decoded += len(ids)
        return "".join(map(chr, ids))

    def placeholder(self, length: int) -> list[int]:
        return [ord("#")] * length


def rendered(messages: Said) -> str:
    return "".join(f"<|{message['role']}|>{message['content']}<|end|>\n" for message in messages) + "<|assistant|>"


def sent(redactor: Redactor, messages: Said, answer: str = "fine", prompt: str | None = None, **changes: Any) -> Any:
    ids = list(map(ord, rendered(messages) if prompt is None else prompt))
    response = {"role": "assistant", "content": answer}
    fields = {"prompt_ids": ids, "completion_ids": list(map(ord, answer)), "logprobs": [-0.5] * len(answer), "response": response}
    return redactor.exchange(exchange(messages, **{**fields, **changes}))


def users(*texts: str) -> Said:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


@needs("secrets")
@pytest.mark.parametrize(("question", "answer"), ASKED, ids=range(len(ASKED)))
def test_what_is_told_after_a_question_for_it_is_a_secret(question: str, answer: str) -> None:
    _, _, message = Redactor(ALWAYS).messages(users("hi", question, answer))
    assert "[redacted:" in message["content"]


@pytest.mark.parametrize("turns", [1, 3, 12])
def test_a_conversation_that_grows_is_redacted_as_one_that_is_read_whole(turns: int) -> None:
    """Each request has the earlier messages, whose beginning is known, and the end of the known part may be a question."""
    said = users(*(text for question, answer in ASKED[:6] for text in ("hi", "hello", "go on", question, answer, f"{KEY} it is")))
    redactor = Redactor(ALWAYS)
    for length in [*range(0, len(said), turns), len(said)]:
        assert redactor.messages(said[:length]) == Redactor(ALWAYS).messages(said[:length]), length


@needs("secrets")
def test_a_message_that_was_clean_elsewhere_is_read_after_its_own_beginning() -> None:
    redactor = Redactor(ALWAYS)
    redactor.messages(users("hi", "How many?", "4829"))
    redactor.messages(users("hi", "Please enter your PIN."))
    assert "[redacted:" in redactor.messages(users("hi", "Please enter your PIN.", "4829"))[2]["content"]


@pytest.mark.parametrize(("question", "answer"), NOT_SECRET, ids=range(len(NOT_SECRET)))
def test_an_ordinary_answer_stays(question: str, answer: str) -> None:
    said = users("hi", question, answer)
    assert Redactor(ALWAYS).messages(said) == said


@pytest.mark.parametrize(
    ("role", "text", "answer"),
    [
        ("user", "help me with my code", "In `parser.py`, line 1204, replace `buffer[4096]` with `buffer[8192]`."),
        ("user", "can you review the token counter?", "It counts 5050 and prints 120000."),
        ("user", "which region do the KMS keys live in?", "eu-central-1"),
        ("user", "what is the md5 of an empty password string?", "d41d8cd98f00b204e9800998ecf8427e"),
        ("user", "Which algorithm should I use to store passwords?", "argon2id-2015, with 19 MiB of memory. " * 6),
        ("assistant", "Let me look at the code.", "PORT = 8080\nreturn seed * 1024 + 31337"),
        ("assistant", "I need to see the key handling in auth.py.", "commit 9f8e7d6c5b4a\n 3 files changed, 1204 insertions(+)"),
        ("assistant", "Now I update the password check.", "The sum is 5050, seed 31337."),
    ],
)
def test_what_is_said_and_read_while_an_agent_works_on_code_is_no_answer(role: str, text: str, answer: str) -> None:
    said = [{"role": role, "content": text}, {"role": "assistant" if role == "user" else "tool", "content": answer}]
    assert Redactor(ALWAYS).messages(said) == said


@pytest.mark.parametrize("text", ["I changed the code.", "Can you paste the code of the function?", "I read the code."])
def test_code_that_a_person_is_asked_for_is_no_secret(text: str) -> None:
    said = [{"role": "assistant", "content": text}, {"role": "user", "content": "yes, with seed 48213"}]
    assert Redactor(ALWAYS).messages(said) == said


@needs("secrets")
@pytest.mark.parametrize(
    ("role", "text", "answer"),
    [
        ("user", "what's my garage code again?", "It is 4829."),
        ("user", "Wie war nochmal das WLAN-Passwort?", "Kirschkern-77"),
        ("assistant", "Please enter your PIN.", "4829"),
        ("assistant", "Could you read me the code?", "4829"),
    ],
)
def test_an_assistant_that_is_asked_and_a_tool_that_asks_a_person_tell_secrets(role: str, text: str, answer: str) -> None:
    teller = "assistant" if role == "user" else "tool" if text.startswith("Please") else "user"
    said = [{"role": role, "content": text}, {"role": teller, "content": answer}]
    assert "[redacted:" in Redactor(ALWAYS).messages(said)[1]["content"]


@needs("secrets")
@pytest.mark.parametrize("between", [("wait, she looks for it", "No hurry."), ("which one?", "The one on the card.", "hm", "Yes.")])
def test_a_question_stays_open_while_nothing_answers_it(between: tuple[str, ...]) -> None:
    said = users("hi", "What is the PIN of the card?", *between, "so, she has it: 3308")
    assert "3308" not in Redactor(ALWAYS).messages(said)[-1]["content"]


def test_an_open_question_hides_no_words_and_no_small_numbers_and_ends_after_a_few_messages() -> None:
    late = users("hi", "What is the PIN of the card?", "first the trip to Bergen", "Gladly.", "we are 4, for 12 nights, in a cabin")
    assert Redactor(ALWAYS).messages(late) == late
    others = ("Where to?", "Bergen", "Booked.", "nice", "Anything else?", "the bus", "Which?")
    later = users("hi", "What is the PIN of the card?", "no idea", *others, "4829 from the harbour")
    assert Redactor(ALWAYS).messages(later) == later


@needs("secrets")
@pytest.mark.parametrize(
    ("question", "answer", "secret"),
    [
        ("¿Qué PIN quieres que marque?", "cuatro siete cero nueve", "cuatro siete cero nueve"),
        ("Wie ist das Passwort?", "großes B, klein r, vier, sieben, Unterstrich", "großes B, klein r, vier, sieben, Unterstrich"),
        ("The page asks for the name of your first pet.", "Mr. Biscuit", "Mr. Biscuit"),
        ('psk for "shed-ext"?', "sixteenCandles16", "sixteenCandles16"),
        ("Which card should I use?", "the blue one, 5390 1188 2047 6612", "5390 1188 2047 6612"),
        ("The page wants the three digits from the back.", "386 i think, they are worn", "386"),
        ("Please tell me your phone PIN, digit by digit.", "let me see... 6 1 0 8", "6 1 0 8"),
        ("It asks for the PUK, eight digits on the card.", "found the card! 70318826", "70318826"),
        ("What is the password of the archive?", "pancake. don't judge me", "pancake"),
        ("Your bank has texted you something, could you read it to me?", "just came in: 881 204", "881 204"),
        ("Falta só o código de segurança atrás do cartão.", "tá meio apagado, 416", "416"),
        ("暗証番号を教えてください。", "えーと、5026でお願いします", "5026"),
        (
            "The site wants the answer to your security question: your first pet.",
            "we named the rabbit Sesamkringel",
            "Sesamkringel",
        ),
    ],
)
def test_digits_in_words_dictated_signs_and_names_are_answers(question: str, answer: str, secret: str) -> None:
    assert secret not in Redactor(ALWAYS).messages(users("hi", question, answer))[-1]["content"]


@needs("secrets")
@pytest.mark.parametrize(
    ("said", "secret"),
    [
        (
            (
                ("assistant", "Do you know the database password, or shall I ask Deborah?"),
                ("user", "ask her"),
                (
                    "tool",
                    "message from Deborah: hey! rotated it friday. new one h7GqzP2wVd (no special chars bc of the driver). lunch?",
                ),
            ),
            "h7GqzP2wVd",
        ),
        (
            (
                ("user", "what's the login for the staging db again?"),
                ("tool", "vault_read(path='team/db')\n-> value=Qn8!trellis_05"),
            ),
            "Qn8!trellis_05",
        ),
        (
            (
                ("user", "it says 'To claim host, enter your host key'. Where was mine"),
                ("tool", 'notes = "Bridge 555-0147, dial room 904; host claims with 662190"'),
            ),
            "662190",
        ),
        ((("user", "they asked 'what is the code on the text we sent you?' it is G-620447, do I answer?"),), "G-620447"),
        ((("user", "anything new?\n[18:02] Priya: does anyone know the hulu pw??\n[18:04] Sam: Lemon$Sorbet\n"),), "Lemon$Sorbet"),
        (
            (
                ("assistant", "Please tell me the PIN that you chose."),
                ("user", "starts with 40"),
                ("assistant", "And the rest?"),
                ("user", "918"),
            ),
            "918",
        ),
        (
            (
                ("assistant", "Please tell me the PIN that you chose."),
                ("user", "4907"),
                ("assistant", "4907?"),
                ("user", "sorry, 8 not 7"),
            ),
            "8",
        ),
        (
            (
                ("user", "the backup says wrong password"),
                ("assistant", "What is the new password?"),
                ("user", "moment, I look"),
                ("assistant", "Sure, go ahead."),
                ("user", "walrusparade"),
            ),
            "walrusparade",
        ),
    ],
    ids=range(8),
)
def test_a_question_is_pending_until_it_is_answered_whoever_answers(said: tuple[tuple[str, str], ...], secret: str) -> None:
    (*_, last) = Redactor(ALWAYS).messages([{"role": role, "content": text} for role, text in said])
    assert secret not in last["content"]
    assert "[redacted:password]" in last["content"]


@needs("secrets")
@pytest.mark.parametrize(
    ("question", "answer", "secret"),
    [
        ("What was your first pet?", "I had three. The first one? Mr Tumble the Second", "Mr Tumble the Second"),
        ("What is the passphrase?", "six brown owls in a lift", "six brown owls in a lift"),
        ("What is your memorable date?", "The day we moved. 4 May 1971", "4 May 1971"),
        (
            "This restores the wallet. How many words are there?",
            "12. line one copper olive tidy roof lamp venue",
            "olive tidy roof",
        ),
        ("Now I need the login for the modem.", "admin and kettle-opera-4", "kettle-opera-4"),
        ("The shop wants a card. Number and expiry please.", "5218 9904 7713 0462 goes till 09/28", "5218 9904 7713 0462"),
        ("Which PIN opens it?", "4 then 1 then 7 then 9, and pull", "4 then 1 then 7 then 9"),
    ],
)
def test_phrases_names_dates_and_digits_in_turn_are_answers(question: str, answer: str, secret: str) -> None:
    assert secret not in Redactor(ALWAYS).messages(users("hi", question, answer))[-1]["content"]


@needs("secrets")
@pytest.mark.parametrize(
    ("said", "secret"),
    [
        (
            (
                ("user", "The plotter asks for its licence key."),
                ("assistant", "Read it out as it stands on the box, please."),
                ("user", "MK7R-Q3LD-88TR-M0PZ, with a zero"),
            ),
            "MK7R-Q3LD-88TR-M0PZ",
        ),
        (
            (
                ("user", "the router says wrong password"),
                ("assistant", "Spell it for me, character by character."),
                ("user", "o-t-t-e-r-0-7"),
            ),
            "o-t-t-e-r-0-7",
        ),
        (
            (
                ("assistant", "The first number of the safe?"),
                ("user", "Left four turns to 38."),
                ("assistant", "And then?"),
                ("user", "Right twice to 71."),
            ),
            "71",
        ),
        (
            (
                ("assistant", "I need the recovery phrase."),
                ("user", "wait"),
                ("assistant", "Do not paste it here."),
                ("user", "too late: jungle maple oxygen bracket snack rival"),
            ),
            "jungle maple oxygen bracket snack rival",
        ),
        (
            (
                ("assistant", "Give me the alarm PIN. Words are fine if the keyboard is broken."),
                ("user", "Nine, zero, two, five. Then green."),
            ),
            "Nine, zero, two, five",
        ),
        (
            (("assistant", "I need the admin password."), ("user", "The screen is tiny. It is Anch0rage/NW9. Change it.")),
            "Anch0rage/NW9",
        ),
        (
            (("assistant", "The key is encrypted. Passphrase?"), ("user", "why do you want it. fine. brownfox_salmon_ladder")),
            "brownfox_salmon_ladder",
        ),
        (
            (("assistant", "Which passphrase did he use?"), ("user", 'In his hand: "Days are kept, hours are lost - R.M."')),
            "Days are kept",
        ),
        (
            (("user", "make a ticket\n> @ria: whats the pw of the portal\n> @ilir: Moonpie_settles_T2\n> @ria: ty"),),
            "Moonpie_settles_T2",
        ),
    ],
    ids=range(9),
)
def test_a_report_a_request_with_a_remark_and_a_later_part_lead_to_the_secret(
    said: tuple[tuple[str, str], ...], secret: str
) -> None:
    (*_, last) = Redactor(ALWAYS).messages([{"role": role, "content": text} for role, text in said])
    assert secret not in last["content"]


@needs("secrets")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('{"lvl":"debug","pan":"4716902255318841","exp":"0927"}', "4716902255318841"),
        ('The passphrase of the gate is "three grey gulls on a wet bollard".', "three grey gulls"),
        ('approval phrase for payouts today is "crispy walrus nine", valid 15 min', "crispy walrus nine"),
        ("printer: floor 2. wifi: office-guest / such-wet-packets. bins go thu.", "such-wet-packets"),
        ("paypal: treasurer@club.example / Bunting_and_Lamps_12", "Bunting_and_Lamps_12"),
        ("my password is Ginger_cakes_r_biscuits and always was", "Ginger_cakes_r_biscuits"),
        ('cl := sms.New("ACoffice", "f1b8d06e92c74ac3b5507e3da4196c28")', "f1b8d06e92c74ac3b5507e3da4196c28"),
        ("GET /export?acct=5512&sig=c0ffe3b1d97a44aa&page=2", "c0ffe3b1d97a44aa"),
    ],
)
def test_records_notes_and_calls_show_their_secret(text: str, secret: str) -> None:
    assert secret not in Redactor(ALWAYS).text(text)


@pytest.mark.parametrize(
    "said",
    [
        ("The manual says to try 4242 4242 4242 4242. Is that a card?",),
        ("he says test the form with 4242 4242 4242 4242, is that a card",),
        ("which number tests 3ds again", "4000 0027 6000 3184, it is in stripe's docs."),
        ("my calls fail", "What codes do you get back?", "429 then 503 then 200, retry-after 30"),
        ("a fee", "What is the merchant category code?", "5814, fast food"),
        ('curl -H "Authorization: Bearer $TOKEN" $HOST/v1/payouts/po_11827 returns {}',),
        ('violates foreign key constraint "fees_fkey" DETAIL: Key (tx_id)=(7710245) is not present',),
        ("ssh fails: incorrect passphrase supplied", "key ~/.ssh/id_gate is encrypted."),
    ],
    ids=range(8),
)
def test_test_cards_status_codes_and_rows_of_a_database_stay(said: tuple[str, ...]) -> None:
    assert Redactor(ALWAYS).messages(users(*said)) == users(*said)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the answer to your security question?", "Wait a second. My phone is ringing."),
        ("What is the answer to your security question?", "Which one? There are three."),
        ("Please enter your recovery phrase.", "it is on the paper in the drawer under the old printer"),
        ("Please enter your recovery phrase.", "where do normal people usually keep those words anyway"),
        ("How many words does the passphrase have?", "about four, all lower case words from some list"),
        ("What's the expiry, please?", "12 March 2027"),
        ("What is your mother's maiden name?", "Why do you need it. Strange question."),
    ],
)
def test_a_clause_about_the_question_and_a_count_of_words_are_no_answers(question: str, answer: str) -> None:
    said = users("hi", question, answer)
    assert Redactor(ALWAYS).messages(said) == said


@needs("secrets")
@pytest.mark.parametrize(
    ("answer", "secret"),
    [
        ("adgangskoden var rødgrød uden mellemrum", "rødgrød"),
        ("its bananaphone all lowercase", "bananaphone"),
        ("over the grey fence 3 geese   (all lowercase, with spaces)", "over the grey fence 3 geese"),
        ("oui il m'a dit « les poules du jeudi » sans majuscule", "les poules du jeudi"),
        ("Is it safe to put that here? Well, nobody wants my cholesterol. oldtimer", "oldtimer"),
    ],
)
def test_a_remark_on_its_letters_and_a_last_sentence_of_one_word_show_a_password_of_words(answer: str, secret: str) -> None:
    assert secret not in Redactor(ALWAYS).messages(users("hi", "What is the password of the disk?", answer))[-1]["content"]


@pytest.mark.parametrize(
    "answer", ["does it have to be all lowercase?", "no idea if there was a capital letter", "ask Tom. thanks"]
)
def test_a_question_about_letters_and_thanks_are_no_passwords(answer: str) -> None:
    said = users("hi", "What is the password of the disk?", answer)
    assert Redactor(ALWAYS).messages(said) == said


@pytest.mark.parametrize(
    "said",
    [
        (
            ("user", "what's my wifi password again?"),
            ("tool", '{"id": "a8f3e2b1c9d04e5f", "state": "ok", "port": 8443, "version": "2.14.1"}'),
        ),
        (
            ("assistant", "What is the admin password?"),
            ("user", "look in the log"),
            ("tool", "3 files changed, 1204 insertions in 9f8e7d6c5b4a"),
        ),
        (("user", "remind me to renew the passport"), ("assistant", "What date does it run out?"), ("user", "2031-08-23")),
        (("user", "summarise\nAnna: which port does it use?\nBen: 8443\nAnna: and the branch?\nBen: release-2024b"),),
    ],
    ids=range(4),
)
def test_ids_counts_and_dates_after_a_pending_question_stay(said: tuple[tuple[str, str], ...]) -> None:
    messages = [{"role": role, "content": text} for role, text in said]
    assert Redactor(ALWAYS).messages(messages) == messages


@needs("secrets")
def test_a_secret_beside_an_image_is_found() -> None:
    content = [
        {"type": "text", "text": "my PIN is"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "text", "text": "4829"},
    ]
    (clean,) = Redactor(ALWAYS).messages([{"role": "user", "content": content}])
    assert clean["content"][2]["text"] == "[redacted:password]"


@needs("secrets")
def test_a_part_that_a_client_adds_asks_nothing_and_ends_no_question() -> None:
    added = {"type": "text", "text": "<system-reminder>" + "Say where the code is. " * 20 + "Use the code.</system-reminder>"}
    said = [{"role": "user", "content": [added, {"type": "text", "text": "run 48213 now"}]}]
    assert Redactor(ALWAYS).messages(said) == said
    messages = [{"role": "user", "content": [added, {"type": "text", "text": "4829"}]}]
    _, clean = Redactor(ALWAYS).messages([{"role": "assistant", "content": "Please enter your PIN."}, *messages])
    assert clean["content"][1]["text"] == "[redacted:password]"


def test_recorded_conversations_of_agents_lose_nothing() -> None:
    recorded = (json.loads(path.read_text()).get("request") for path in (Path(__file__).parents[1] / "recordings").rglob("*.json"))
    bodies = [body for body in recorded if isinstance(body, dict)]
    conversations = [body[key] for body in bodies for key in ("messages", "input") if isinstance(body.get(key), list)]
    assert len(conversations) > 20
    assert [messages for messages in conversations if Redactor(ALWAYS).messages(messages) != messages] == []


@needs("secrets")
def test_a_pasted_key_costs_its_own_tokens_and_the_turn_is_trained() -> None:
    redactor = Redactor(ALWAYS, decode=Letters())
    said = users(f"use {KEY} please")
    clean = sent(redactor, said)
    assert clean.untrainable_reason is None
    assert clean.messages == users("use [redacted:api_key] please")
    assert clean.redacted_by == "a key with a known format, in the conversation"
    assert "".join(map(chr, clean.prompt_ids)) == rendered(said).replace(KEY, "#" * len(KEY))
    assert (len(clean.completion_ids), len(clean.logprobs)) == (4, 4)
    later = [*said, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "and now?"}]
    again = sent(redactor, later)
    assert (again.untrainable_reason, KEY in "".join(map(chr, again.prompt_ids))) == (None, False)


def test_a_message_that_reads_like_a_question_for_its_secret_costs_no_other_turn() -> None:
    said = users("Authorization: Bearer NJkqW-Dpry97MTtkrTZYFOxRKAmdOc6xvdcA72c6")
    clean = sent(Redactor(ALWAYS, decode=Letters()), said, "I will use it.")
    assert (clean.untrainable_reason, clean.response["content"]) == (None, "I will use it.")


@needs("secrets")
def test_a_turn_whose_answer_holds_the_secret_is_not_trained() -> None:
    for answer in (f"I use {KEY}", "the PIN 4829 is right"):
        clean = sent(Redactor(ALWAYS, decode=Letters()), users(KEY, "Please enter your PIN.", "4829"), answer)
        assert (clean.prompt_ids, clean.completion_ids, clean.untrainable_reason) == (None, None, "redacted")
        assert "[redacted:" in clean.response["content"]


@needs("secrets")
def test_a_secret_that_the_template_writes_in_another_form_costs_the_ids() -> None:
    said = users(f"use {KEY} please")
    clean = sent(Redactor(ALWAYS, decode=Letters()), said, prompt=rendered(said).replace(KEY, " ".join(KEY)))
    assert (clean.prompt_ids, clean.untrainable_reason) == (None, "redacted")


@needs("secrets")
def test_a_secret_that_only_the_ids_hold_is_hidden_in_the_words_as_well() -> None:
    said = users("hunter4711x is what I use", "ok")
    clean = sent(Redactor(ALWAYS, decode=Letters()), said, prompt=f"<|note|>password: hunter4711x<|end|>{rendered(said)}")
    assert "hunter4711x" not in str(clean.messages)
    assert "password: hunter4711x" not in "".join(map(chr, clean.prompt_ids))


@needs("secrets")
@pytest.mark.parametrize(
    ("question", "answer", "secret"),
    [
        ("How does the sitter get into the building?", "the keypad by the shed, she punches in 7264# and pushes", "7264#"),
        ("How do I get past the lock screen?", "mum set nightJar88 ages ago", "nightJar88"),
        ("How is the padlock opened?", "a dial one, 12 / 36 / 04, right left right", "12 / 36 / 04"),
        ("Qu'est-ce qu'il doit taper en bas ?", "58A2 puis 3e étage", "58A2"),
        ("The portal shows a login form. What should I put in it?", "jhalvorsen / Br0kenUmbrella", "Br0kenUmbrella"),
        ("What's its address and the SNMP community?", "10.4.0.9 / gr0undh0g-ro", "gr0undh0g-ro"),
    ],
)
def test_a_question_of_how_to_get_in_asks_for_a_secret(question: str, answer: str, secret: str) -> None:
    assert secret not in Redactor(ALWAYS).messages(users("hi", question, answer))[-1]["content"]


@needs("secrets")
@pytest.mark.parametrize(
    ("said", "secret"),
    [
        (("The porter has the code. Do you have it?", "he said C4471 today"), "C4471"),
        (("The vault is sealed. Unseal key:", "use hQ9/2vLpXk0Zt7RyWb5NcGs1HdJfEu8aIo3KqTx4="), "hQ9/2vLpXk0Z"),
        (("What do I type to join?", "kellertreppe42links"), "kellertreppe42links"),
        (("Hello! The key is in the small box right of the door. Turn to 0-9-1-5 and push.",), "0-9-1-5"),
        (("La voisine a laissé un mot : « boîte à clés, 3-6-8-5, merci »",), "3-6-8-5"),
        (("the shed's 4 2 1 2, by the way",), "4 2 1 2"),
    ],
    ids=range(6),
)
def test_codes_of_doors_keys_with_slashes_and_digits_set_apart_by_a_lock_are_found(said: tuple[str, ...], secret: str) -> None:
    messages = users("hi", *said) if len(said) > 1 else [{"role": "user", "content": said[0]}]
    assert secret not in Redactor(ALWAYS).messages(messages)[-1]["content"]


@pytest.mark.parametrize(
    "said",
    [
        ("When did you last change the password?", "2021 i think"),
        ("What's the public key of the new peer?", "hQ9/2vLpXk0Zt7RyWb5NcGs1HdJfEu8aIo3KqTx4="),
        ("What was the score at the door of the club?", "we won the set, they said 6-4, 7-5"),
        ("log", '{"user": "kim", "password": "[FILTERED]"}'),
    ],
    ids=range(4),
)
def test_when_public_keys_scores_and_filtered_values_stay(said: tuple[str, str]) -> None:
    messages = users("hi", *said)
    assert Redactor(ALWAYS).messages(messages) == messages


@needs("secrets")
def test_a_person_who_quotes_a_request_for_a_secret_tells_it_later() -> None:
    said = users(
        "the installer says 'Please enter your product key'", "It is in the e-mail. Can you find it?", "HJ4T-99QX-MM2C-ZK07"
    )
    assert "HJ4T" not in Redactor(ALWAYS).messages(said)[-1]["content"]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Passwords must have at least 14 characters. Passphrases of four words are encouraged.", "make it 16"),
        ("Where do you keep your passwords at the moment?", "KeePassXC, file on a nas"),
        ("Qual código aparece no visor?", "0x6100004a"),
        ("What is the passphrase for the backup key?", "dunno, it is in the safe under 'backup 2021', ask Wim"),
        ("Wie lautet das Passwort für das alte Konto?", "keine ahnung, das hat immer mein mann gemacht"),
        ("Which port does the login service listen on?", "8443"),
        ("How do I get into the settings?", "tap the gear at the top"),
        ("How does she get to the airport?", "bus 4829 from the harbour"),
        ("What should I write in the subject?", "Minutes of 2024-11-03"),
    ],
)
def test_rules_places_and_refusals_are_no_answers(question: str, answer: str) -> None:
    said = users("hi", question, answer)
    assert Redactor(ALWAYS).messages(said) == said


@needs("secrets")
def test_the_benchmark_of_conversations_keeps_its_bars() -> None:
    measured = {row.metric: row.value for row in rows(200, seed=1)}
    zero = ("asked_then_told_kept", "ordinary_answers_hidden", "text_and_ids_disagree", "turns_lost_to_a_pasted_key")
    assert {name: measured[name] for name in (*zero, "answers_with_the_key_trained")} == dict.fromkeys(
        (*zero, "answers_with_the_key_trained"), 0
    )
    assert (measured["turns"] or 0) >= 40
    assert (measured["kept_share"] or 0) < 0.2
    assert (measured["hidden_share"] or 0) < 0.05


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            "How does the API key rotation work here?",
            "It uses HMAC-SHA256 in utils2.py and Python3.11; see auth_v2.py and test_keys_2.",
        ),
        ("Where is the access token refreshed?", "In client/session.py by refresh_token2(), every 3600 s, with OAuth2 and utf8."),
        ("What is the password hash algorithm?", "argon2id, since Django4, and sha256sum before"),
    ],
)
def test_an_explanation_of_code_tells_no_secret(question: str, answer: str) -> None:
    said = users(question, answer)
    assert Redactor(PrivacyConfig().redact).messages(said) == said


def test_only_what_is_new_in_a_conversation_is_decoded() -> None:
    letters = Letters()
    redactor, said = Redactor(ALWAYS, decode=letters), users("word " * 2000)
    for number in range(10):
        assert sent(redactor, said).untrainable_reason is None
        said = [*said, {"role": "assistant", "content": "fine"}, {"role": "user", "content": f"turn {number}"}]
    assert letters.decoded < 2 * len(rendered(said))


def test_what_one_key_sends_displaces_nothing_that_another_key_sent() -> None:
    redactor = Redactor(ALWAYS, cache_size=4, decode=Letters())
    sent(redactor, users("word"))
    before = dict(redactor._memories.by_key["default"].values)
    for number in range(20):
        sent(redactor, users(f"flood {number}"), key="mallory")
    assert redactor._memories.by_key["default"].values == before
    assert len(redactor._memories.by_key["mallory"].values) == 4


@needs("secrets")
def test_many_secrets_cost_the_ids_and_not_everybodys_time() -> None:
    """Each secret that the template writes in another form is looked for in all of the prompt, so their number is bounded."""
    draw = random.Random(1)
    keys = ["ghp_" + "".join(draw.choices("abcdefghijkABCDEFGHIJK0123456789", k=36)) for _ in range(300)]
    message = {"role": "user", "content": " | ".join(keys)}
    written = sent(Redactor(ALWAYS, decode=Letters()), [message], prompt="\n".join(f"- {key}" for key in keys))
    assert (written.prompt_ids, written.completion_ids, written.untrainable_reason) == (None, None, "redacted")
    assert not [key for key in keys if key in repr(written)]


@pytest.mark.parametrize(
    ("text", "value", "places"),
    [("4829 48291 4829.", "4829", [(0, 4), (11, 15)]), ("aaa", "aa", []), ("#a#a", "#a", [(0, 2), (2, 4)]), ("x", "", [])],
)
def test_a_secret_is_looked_for_as_whole_words(text: str, value: str, places: list[tuple[int, int]]) -> None:
    assert list(occurrences(text, value)) == places
