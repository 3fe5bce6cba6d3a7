"""Scorers of one answer: whether it meets a wish, whether it can be read at all, whether it gets a fact right."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "real"
BLOCKS = (FOLDER / "common_words.txt").read_text(encoding="utf-8").split("\n\n")
ENGLISH, SPANISH, NEIGHBOURS = (set(block.split()) for block in BLOCKS)  # the last: French, Italian, Portuguese, German
EMOJI = (
    "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff⌚⌛⏩-⏳☀-☄☎☔☕☘☝☠☢☣☮☯☸-☺♈-♓♠♣♥♦♨♻♿⚒-⚗⚙⚛⚠⚡⚪⚫⚽⚾⛄⛅"
    "⛈⛏⛑⛔⛪⛰-⛵⛷-⛺⛽✂✅✈-✍✏✔✖✨✳✴❄❇❌❎❓-❕❗❣❤➕-➗➡⬅-⬇⭐⭕]"
)
JOINERS = re.compile("[\u200d\ufe0e\ufe0f\u20e3]")
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
BULLET = re.compile(r"\s*(?:[-*•‣◦–]|\d{1,2}[.)])\s+\S*?[^\W\d_]")
ABBREVIATION = re.compile(
    r"\b(?:(?i:e\.\s?g|i\.\s?e|approx|vs|mr|mrs|ms|dr|sra?|no(?=\.\s?\d))|(?:etc|[ap]\.m)(?=\.\s+[a-z])|(?:[A-Z]\.)+[A-Z](?=\.\s+[a-z]))\."
)
GREETING = (
    r"(?:hello|hi|hey|ahoy|greetings|dear|aye|yes|no|sure|thanks|thank you|welcome|sorry|my|good (?:morning|day|evening|luck))"
)
ADDRESS = re.compile(
    rf"\A\W*captain(?:\**[.]\s+\S|\s+(?-i:[A-Z])\w+(?:[.!]|,(?!\s+(?:an?|the|who|which)\b)))"  # "Captain Jack, it is"
    rf"|(?:\A|[.!?:\n]['\"”*)]*)\W*captain\b\**(?=\s*(?:[,!?]|[-–—]\s))"  # "Captain, it is"
    rf"|(?:,|\b{GREETING})\s+(?:my\s+)?\**captain\b\**(?=\s*(?:$|[.,;:!?)\n]|[-–—]\s|{EMOJI}))",  # "Yes, Captain!"
    re.IGNORECASE,
)
RANK = r"(?:major|lieutenant|sergeant|admiral|colonel|general)"
NO_ADDRESS = re.compile(
    rf"\b(?:sincerely|regards|yours|{RANK})\W+captain\b|\bcaptain,\s+(?:and|or|{RANK})\b|,\s+captain,\s+[\w ]+,\s+(?:and|or)\b",
    re.IGNORECASE,
)


def words_of(text: str) -> list[str]:
    """Its words in small letters; digits and symbols are none."""
    return [word.lower() for word in WORD.findall(text)]


def _one_short_sentence(answer: str) -> bool:
    """Exactly one sentence of 2 to 25 words on one line, ended by a mark; a closing quote or emoji may follow it."""
    text = re.sub(rf"(?:{EMOJI}|\s)+$", "", JOINERS.sub("", answer)).strip()
    plain = ABBREVIATION.sub(lambda match: match[0].replace(".", ""), text)
    ends = re.findall(r"[.!?…]+['\"”’)*]*(?=\s|$)", plain)
    return "\n" not in text and len(ends) == 1 and plain.endswith(ends[0]) and 2 <= len(text.split()) <= 25


def _list(answer: str) -> bool:
    """At least two bullet lines with words; more than half of the lines and half of the words stand in bullets."""
    lines = [line for line in answer.splitlines() if line.strip()]
    bullets = [line for line in lines if BULLET.match(line)]
    inside, everything = (sum(len(line.split()) for line in some) for some in (bullets, lines))
    return len(bullets) >= 2 and 2 * len(bullets) > len(lines) and 2 * inside >= everything


def _spanish(answer: str) -> bool:
    """Spanish words and accents are over 0.3 of the words and twice those of English and Spanish's neighbours."""
    text = re.sub(r"[\"“«][^\"”»]*[\"”»]|\w+-[\w-]+", " ", answer)
    if not text.isupper():  # a capital within a sentence begins a name, which tells nothing
        text = re.sub(r"(?<=[^\W\d_][ ,])(\s?)[A-ZÁÉÍÓÚÑ]\w+", " ", text)
    readable = [word for word in words_of(text) if len(word) > 1 or not word.isascii()]
    ours = [word for word in readable if word not in ENGLISH | NEIGHBOURS and (word in SPANISH or re.search("[áéíóúñ]", word))]
    theirs = [
        word for word in readable if word not in SPANISH and (word in ENGLISH | NEIGHBOURS or re.search("[àèìòùâêôãõçßäö]", word))
    ]
    marks = len(re.findall("[¿¡]", text))
    return bool(ours) and len(ours) + marks >= 2 * len(theirs) and 10 * len(ours) > 3 * len(readable)


def _capitals(answer: str) -> bool:
    """No small letter, and at least two words of two letters or more, so that an acronym alone is not enough."""
    return answer.upper() == answer and sum(len(word) > 1 for word in words_of(answer)) >= 2


def _goodbye(answer: str) -> bool:
    """Its last words are the phrase, after something else; case, the mark and an emoji behind it are free."""
    end = re.search(rf"\bhave a lovely day\s*[.!]*(?:['\"”’*_\s]|{EMOJI})*$", JOINERS.sub("", answer), re.IGNORECASE)
    return bool(end and words_of(answer[: end.start()]))


def meets(name: str, answer: str) -> bool:
    """Whether the answer's form is what the note of that name asks for; False for the controls, KeyError for unknown names."""
    return {
        "short": _one_short_sentence,
        "list": _list,
        "emoji": lambda text: bool(re.search(EMOJI, text)),
        "captain": lambda text: bool(ADDRESS.search(NO_ADDRESS.sub(" ", text.strip()))),
        "spanish": _spanish,
        "capitals": _capitals,
        "goodbye": _goodbye,
        "nothing": lambda text: False,
        "nothing_else": lambda text: False,
    }[name](answer)


def _trigrams(word: str) -> list[str]:
    """Its runs of three letters, its edges marked; as many as it has letters."""
    return [f"^{word}$"[at : at + 3] for at in range(len(word))]


REQUESTS = [(FOLDER / name).read_text(encoding="utf-8") for name in ("past_requests.txt", "new_requests.txt")]
KNOWN = ENGLISH | SPANISH | NEIGHBOURS | {word for text in REQUESTS for word in words_of(text)}
SEEN = {trigram for word in KNOWN for trigram in _trigrams(word)}


def _like_a_word(token: str) -> bool:
    """Known, or spelt mostly in letter trigrams of known words; a capital after a small letter is no word's."""
    if re.search(r"[a-zà-ÿ][A-ZÀ-Þ]", token):
        return False
    parts = [part for part in re.split(r"[-'’/–—]", token.lower()) if part]
    return all(part in KNOWN or (part.isalpha() and 2 * sum(t in SEEN for t in _trigrams(part)) >= len(part)) for part in parts)


def _loops(text: str) -> bool:
    """A word four times in a row, a phrase of up to twelve words three times in a row, or a 3-gram in half of the text.

    Lines may begin alike, as those of a list do."""
    words = words_of(text)
    for size in range(1, 13):
        same = 0
        for at in range(size, len(words)):
            same = same + 1 if words[at] == words[at - size] else 0
            if same >= max(3, 2 * size):
                return True
    grams = [tuple(line[at : at + 3]) for line in map(words_of, text.splitlines()) for at in range(1, len(line) - 2)]
    often = max(map(grams.count, set(grams)), default=0)
    return (often >= 4 and 6 * often >= len(words)) or (len(words) >= 30 and len(set(words)) < 0.3 * len(words))


def unreadable(answer: str, ended: bool) -> bool:
    """Whether it is no text a person could read: no letters, loops, runs of symbols, empty markers, mostly non-words.

    Knows no wish and no topic. Being cut (not `ended`) is no fault, and the last word of a cut answer is not judged.
    Common words in an order that means nothing pass: this sees letters, words and repetition, not sense."""
    text = JOINERS.sub("", answer).strip()
    bare = re.sub(rf"(?m){EMOJI}|^[\s|:*_-]+$", "", text)  # nor the rules of a table
    solid = re.sub(r"[\s|*#_-]", "", bare)
    if not WORD.search(text) or _loops(text) or re.search(rf"(?:{EMOJI}\s*){{12,}}", text):
        return True
    if re.search(r"([^\W\d_]{1,4}?)\1{5,}|[^\w\s]{12,}|(?:\b\d{1,2}[.)]\s*){3,}", bare):
        return True
    if 2 * sum(char.isalnum() for char in solid) < len(solid):
        return True
    tokens = [token for token in (re.sub(r"^[\W\d_]+|[\W_]+$", "", part) for part in bare.split()) if token]
    tokens = tokens if ended or len(tokens) < 2 else tokens[:-1]
    odd = sum(not _like_a_word(token) for token in tokens)
    running = words_of("\n".join(line for line in bare.splitlines() if len(line.split()) > 5 or not BULLET.match(line)))
    strange = len(running) >= 12 and sum(word in KNOWN for word in running) < len(running) / 3
    return strange or odd > (0.5 if len(tokens) < 4 else 0.35) * len(tokens)


def facts_right(question_row: Mapping[str, Any], answer: str) -> bool:
    """Whether one of the row's accepted answers stands in the text as whole words; "7" is not in "17" nor in "7.5"."""
    accepted = "|".join(map(re.escape, question_row["answers"]))
    return bool(re.search(rf"(?<!\w)(?<!\d[.,])(?:{accepted})(?!\w|[.,]\d)", answer.lower()))
