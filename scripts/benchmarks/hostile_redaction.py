# ruff: noqa: E501 - lines of data stay lines
"""Case `redaction`: how the processor time of redaction grows with its input, and how a hostile text delays other keys.

Generators make adversarial texts: each rule nearly matches at every position, or long runs must be read repeatedly. More texts are
drawn at random from the same building blocks. The exponent of a generator is the slope of log time over log size.

Long texts are redacted in pieces of bounded length, so a slow rule shows only within a piece. Each generator is therefore measured
twice: at sizes within one piece and at sizes of many pieces. The slowest texts are also redacted at a million characters.

Times are processor time, the best of several tries. On a busy machine, a few of hundreds of slopes are measured too steep. A slope
above `_SUSPICIOUS` is therefore measured again with more sizes and more tries, and the second measurement counts. A quadratic rule
is steep both times. A test plants such a rule.
"""

import argparse
import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from clawctl.config import PrivacyConfig
from clawctl.privacy.finders import KINDS
from clawctl.privacy.redaction import Redactor
from clawctl.run.rows import Exchange
from clawctl.serve.capture import Capture
from scripts.benchmarks.table import Row

Generator = Callable[[int], str]
_SIZES = (16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10)  # characters
_LARGEST, _SLOWEST = 1 << 20, 5  # the five texts that are slowest per character are also redacted at that size
_QUICK_SIZES = (64 << 10, 256 << 10)
WITHIN = (2400, 4800, 9600)  # characters; at most the length of one piece
_AGAIN = (32 << 10, 48 << 10, 64 << 10, 96 << 10, 128 << 10, 192 << 10, 256 << 10)
_WITHIN_AGAIN = (1600, 2400, 3200, 4800, 6400, 8000, 9600)
_EVERY_RULE = partial(Redactor, KINDS)
_SUSPICIOUS = 1.15
_REPEATS_AGAIN = 3
_DRAWN, _QUICK_DRAWN = 40, 8
_REPEATS = 2
_OTHERS = 20  # exchanges of the other key while a hostile text is redacted

BLOCKS = (
    "pass", "password: ", "password:", "password='", 'password="{', "key", "api_key=", "key is ", "token=\\\\\\", "secret", "token ", "auth(", "auth='",
    "{}", "}", "{", "[", "]", "${", "{{", "<", ">", "</", "&lt;", "&#x41;", "%41", "%25", "\\u0061", "\\", '\\"', '"', "'", "`", "\\\\\"",
    "sk-", "sk-a1", "eyJ", "eyJ.", "eyJaaaaaaaa.", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----", "://a:", "://", "@", "a@b.", "a.", ".a1",
    "curl -u ", "curl ", " -p", "mysql -p", "--", "--token ", "echo a1 | ", "identified by '", "4111 ", "4111.1111.", "4", "+1 ", "(555) ", "AKIA", "AIza",
    "xoxb-", "ghp_", "hvs.", "dp.pt.", "a1B2", "aA1+/", "QUJD", "LS0t", "41", "2e", " ", "\t", "\n", "\r\n    ", ",", ";", "|", "| password |\n", "password,a\n",
    "a", "1", "a1", "-", "_", "=", "==", ":", "?sig=", "&key=a1", "Cookie: a=", ";a=b1", "bearer ", "Authorization: ", "Bearer a1", "seed phrase ", "abandon ",
    "İ", "ß", "ﷺ", "ａ", "\u200b", "\u0301", "пароль", "密码", "パスワード", "пароль ", "🔑", "name: password\n value", "<password>", "<td>password</td><td>",
    "value=", "is", " is ", " es", "data:image/png;base64,", "MIIE", "x", "…", "name", "$", "%(", "#{", "Private-Lines: 1", ":5432:a:b:", "iVBORw0KGgo",
    "ab_cd_", "Authorization: x a=b,", "a=b,", "/hooks/", "/services/T/", "session({secret:", "login a b ", "log in a b / ", "bundle config ",
    "eyJaaaaaaaaaaaaa\n", "eyJaaaa.aaaaaaaa\n", "PIN for a b ", "otp secret ", "ABCD ", "'a' + ", "''", "new A('", '"kty""d":"', "__COM=a:", "password%3D", "a1b2c3d4:", "-pass ", "PWD={",
    "$ pass show a\na1b2c3d4\n", "echo $PASSWORD ", "recovery codes: ", "a1b2-c3d4 ", "Enter password for a ", '"user":"a","key":"a1', "'A_KEY', '!", "| password | aB1!",
    "the PIN is ", "code for the ", "combination ", "backup codes: ", "4471", "12-", "recovery code ", "Password:\n\n", "password?\n> ", "// api key ", "$6$a$",
    "$argon2id$a$b$", "a1!", "_a1", "jwt.sign(", "aes(a,", "NAME  PASSWORD\n", "press ", "zqxj1", "код от ", "x@a.b: ", "root/",
)  # fmt: skip


def of_block(block: str) -> Generator:
    return lambda size: (block * (size // len(block) + 1))[:size]


def of_json(block: str) -> Generator:
    """Put the block into JSON as the value of a password. This form once took ten seconds for 32 KB."""
    return lambda size: (
        '{"password":"' + (block * (size // len(block) + 1))[: max(0, size - 15)].replace("\\", "").replace('"', "") + '"}'
    )


def drawn(seed: str) -> Generator:
    """Draw two to six blocks, repeat each a few times, and repeat the whole."""
    draw = random.Random(seed)
    chosen = [draw.choice(BLOCKS) * draw.choice((1, 1, 2, 7, 60)) for _ in range(draw.randint(2, 6))]
    return of_block("".join(chosen))


def mixed(seed: str) -> Generator:
    """Draw blocks in random order, without repetition of the whole."""

    def make(size: int) -> str:
        draw, pieces, length = random.Random(seed), list[str](), 0
        while length < size:
            pieces.append(draw.choice(BLOCKS))
            length += len(pieces[-1])
        return "".join(pieces)[:size]

    return make


def nested(size: int) -> str:
    return "[" * (size // 2) + "]" * (size // 2)


def json_in_json(size: int) -> str:
    depth = 1
    text = '{"a":"b1"}'
    while len(text) * 2 < size:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        text, depth = f'{{"a":"{escaped}"}}', depth + 1
    return text + " " * (size - len(text))


def generators(seed: int, quick: bool) -> dict[str, Generator]:
    made: dict[str, Generator] = {f"{block!r} repeated": of_block(block) for block in BLOCKS}
    made |= {f"password of {block!r}": of_json(block) for block in BLOCKS[:: 4 if quick else 1] if block.strip('\\"')}
    made |= {"nested brackets": nested, "JSON in JSON": json_in_json}
    for number in range(_QUICK_DRAWN if quick else _DRAWN):
        made[f"drawn {seed}/{number}"] = drawn(f"{seed}/{number}")
        made[f"mixed {seed}/{number}"] = mixed(f"{seed}/{number}")
    return made


def seconds(text: str, make: Callable[[], Redactor] = _EVERY_RULE) -> float:
    """Return the processor seconds to redact `text` as the content of a message."""
    redactor = make()
    began = time.process_time()
    redactor.value({"role": "user", "content": text})
    return time.process_time() - began


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of log time over log size (least squares)."""
    if sizes[-1] == sizes[0]:
        return 0.0
    xs, ys = [math.log(size) for size in sizes], [math.log(seconds) for seconds in times]
    middle, level = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - middle) * (y - level) for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)


def slope(make: Generator, sizes: Sequence[int], repeats: int, redactor: Callable[[], Redactor]) -> tuple[float, float]:
    """Return the exponent of a generator over these sizes, and its seconds at the largest size.

    Each try measures all sizes, so that a short load on the machine does not affect all tries of one size.
    """
    texts = [make(size) for size in sizes]
    tries = [[seconds(text, redactor) for text in texts] for _ in range(repeats)]
    times = [min(of_size) for of_size in zip(*tries, strict=True)]
    return exponent([len(text) for text in texts], times), times[-1]


def growth(
    made: dict[str, Generator], sizes: Sequence[int], redactor: Callable[[], Redactor] = _EVERY_RULE
) -> tuple[dict[str, float], dict[str, float], int]:
    """Return each generator's exponent, its seconds at the largest size, and the number of repeated measurements."""
    exponents, last, again = {}, {}, 0
    for name, make in made.items():
        steepest, last[name] = slope(make, sizes, _REPEATS, redactor)
        if steepest > _SUSPICIOUS:
            again += 1
            steepest, _ = slope(make, _AGAIN, _REPEATS_AGAIN, redactor)
        within, _ = slope(make, WITHIN, _REPEATS, redactor)
        if within > _SUSPICIOUS:
            again += 1
            within, _ = slope(make, _WITHIN_AGAIN, 3 * _REPEATS_AGAIN, redactor)
        exponents[name] = max(steepest, within)
    return exponents, last, again


def _exchange(key: str, number: int, text: str) -> Exchange:
    said = {"role": "assistant", "content": "fine"}
    return Exchange(
        exchange_id=f"{key}{number:022d}", created_at=1.0, finished_at=2.0, api="chat", key=key, status="ok", model="crafts",
        messages=[{"role": "user", "content": text}], tools=None, response=said, finish_reason="stop", prompt_ids=None,
        completion_ids=None, logprobs=None, policy_version=0, policy_version_end=0, temperature=1.0, top_p=1.0, top_k=0, hints={},
        untrainable_reason=None,
    )  # fmt: skip


async def other_capture_ms(folder: Path, hostile: str, keys: int = 4) -> float:
    """Return the longest capture time of one key's exchanges, in ms, while hostile texts of `keys` other keys are redacted."""
    folder.mkdir(exist_ok=True)
    capture = Capture(folder, PrivacyConfig())
    attack = [asyncio.create_task(capture.write(_exchange(f"hostile{n}", n, hostile + str(n)))) for n in range(keys)]
    await asyncio.sleep(0.05)
    longest = 0.0
    for number in range(_OTHERS):
        began = time.perf_counter()
        await capture.write(_exchange("anna", number, f"What is {number} + 2?"))
        longest = max(longest, time.perf_counter() - began)
        await asyncio.sleep(0.01)
    await asyncio.gather(*attack)
    capture.close()
    return longest * 1000


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    sizes = _QUICK_SIZES if options.quick else _SIZES
    made = generators(options.seed, options.quick)
    exponents, last, again = growth(made, sizes)
    steepest = max(exponents, key=exponents.__getitem__)
    largest = sizes[-1] if options.quick else _LARGEST
    slow = sorted(last, key=last.__getitem__)[-_SLOWEST:]
    longest = last if options.quick else {name: seconds(made[name](largest)) for name in slow}
    slowest = max(slow, key=longest.__getitem__)
    waited = asyncio.run(other_capture_ms(folder / "captures", made[slowest](largest)))
    return [
        Row("redaction", "growth_exponent_max", exponents[steepest], "exponent"),
        Row("redaction", f"worst_s_at_{largest >> 10}_k", longest[slowest], "s"),
        Row("redaction", "generators", len(made), "texts"),
        Row("redaction", "measured_again", again, "slopes"),
        Row("redaction", "other_capture_ms_max", waited, "ms"),
        Row(f"redaction, steepest: {steepest[:40]}", "growth_exponent", exponents[steepest], "exponent"),
        Row(f"redaction, slowest: {slowest[:40]}", "seconds", longest[slowest], "s"),
    ]
