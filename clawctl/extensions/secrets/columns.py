# ruff: noqa: E501 - expressions stay lines
"""Finds secrets in table columns whose heading names a secret, and backup codes listed below their heading."""

import re
from collections.abc import Iterator

from clawctl.extensions.secrets.lexicon import TOKEN, Meaning, meaning_of
from clawctl.extensions.secrets.names import is_secret_under
from clawctl.extensions.secrets.text import Anchors, Span, Text, positions_of
from clawctl.extensions.secrets.values import DIGIT, is_stand_in

_HEADS = Anchors(
    "totp",
    "otp",
    "pin",
    "puk",
    "cvv",
    "cvc",
    "code",
    "secret",
    "recovery",
    "backup",
    "kod",
    "codice",
    "c?digo",
    "passw",
    "kennw",
    "login_totp",
    "seed",
    "combination",
)
_HEADS_BEYOND = ("пин", "код", "暗証", "密码", "密碼", "验证码", "비밀번호", "코드", "番号", "الرمز", "रمز", "पिन", "कोड")
_SECRETS = re.compile(
    r"(?i)(?:.*[_ -])?(?:totp|otp|otpauth|2fa|mfa)(?:[_ -]?(?:secret|key|seed|code|url|auth|uri))?s?|(?:.*[_ -])?(?:pin|puk|cvv2?|cvc2?|csc)\d?(?:[_ -]?(?:code|nr|no|number))?|(?:recovery|backup)[_ -]?codes?|seed(?:[_ -]?phrase)?"
)
_IN_CODE = re.compile("[(){}=]")
_ROWS = 40
_BACKUP = re.compile(
    r"(?i)(?:back[ -]?up|recovery|emergency|scratch|rescue|one[ -]time|2fa|8-digit)[ -]{0,3}(?:verification |access |login |sign-in )?codes?|(?:backup|wiederherstellungs|notfall|ersatz|sicherungs)[ -]?codes?|codes? (?:de (?:secours|récupération|recuperation|sauvegarde)|à usage unique)|c[óo]digos? de (?:respaldo|recuperaci[óo]n|recuperação|seguridad|backup|reserva|emergencia|emergência|uso único)|codici di (?:backup|riserva|recupero|emergenza)"
    r"|(?:back-?up|herstel|reserve|nood)-?codes?|kody (?:zapasowe|odzyskiwania|awaryjne)|(?:yedek|kurtarma) kod(?:lar|ları|u)?|резервны[ех] код[ыов]{0,2}|коды восстановления|резервні коди|バックアップ ?コード|リカバリー ?コード|备用(?:验证)?码|备份(?:验证)?码|恢复代码|恢复码|復原碼|備用碼|백업 ?코드|복구 ?코드|رموز (?:احتياطية|الاسترداد|النسخ الاحتياطي)|(?:reserv|återställnings|gjenopprettings|gendannelses|backup)kod(?:er|e)|záložní kódy|tartalék kódok|coduri de rezervă|palautuskoodit|बैकअप कोड|mã dự phòng|kode cadangan|εφεδρικοί κωδικοί|קודי גיבוי"
)
_BACKUP_ANCHORS = Anchors(
    "backup",
    "back-up",
    "back up",
    "recovery",
    "emergency",
    "scratch",
    "rescue",
    "one-time",
    "one time",
    "2fa",
    "8-digit",
    "wiederherst",
    "notfall",
    "ersatzc",
    "sicherungsc",
    "codes de",
    "codes ?",
    "c?digos de",
    "codici di",
    "herstel",
    "reservec",
    "noodc",
    "kody ",
    "yedek",
    "kurtarma",
    "reservkod",
    "terst?llning",
    "gjenopp",
    "gendannel",
    "tartal",
    "coduri",
    "palautusk",
    "kode cadangan",
)
_BACKUP_BEYOND = (
    "резервн", "коды восст", "バックアップ", "リカバリー", "备用", "备份", "恢复", "復原", "備用", "백업", "복구", "رموز", "बैकअप", "εφεδρ", "קודי",
    "mã dự", "záložní",
)  # fmt: skip
_CODE = re.compile(
    r"(?<![\w.@/-])(?P<code>\d{4}[ -]\d{4}|\d{3}[ -]\d{3}(?:[ -]\d{3})?|\d{6,12}|[A-Za-z0-9]{4,6}(?:-[A-Za-z0-9]{4,6}){1,5}|(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{6,16}|(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{6,16})(?![\w@/-]|\.\w)"
)
_LINE = re.compile(r"[^\n]{0,400}")
_MAX_LINES, _MAX_CODES = 24, 40


def in_columns(piece: Text) -> Iterator[Span]:
    """Find values below headings such as `…,login_password,login_totp` and `| Lock | Code |`."""
    text = piece.text
    if "\n" not in text:
        return
    yield from in_selected(piece)
    positions = [] if _HEADS.absent(piece) else _HEADS.positions(piece)
    if piece.beyond:
        positions += [at for word in _HEADS_BEYOND for at in positions_of(piece.lower, word)]
    lines_done: set[int] = set()
    for at in positions:
        begin = text.rfind("\n", max(0, at - 400), at) + 1
        if begin in lines_done or at - begin >= 400:
            continue
        lines_done.add(begin)
        yield from _below(text, begin)


_SELECTS = Anchors("select ")
_SELECT = re.compile(
    r"(?i)select (?P<columns>[^;()\n]{3,200}?) from [^;\n]{1,120};?[\"']?[ \t]*\r?\n(?P<rows>(?:[^\n]{0,300}(?:\n|$)){1,12})"
)


def in_selected(piece: Text) -> Iterator[Span]:
    """Find secrets in query output that has no heading: the query itself names the columns."""
    for at in () if _SELECTS.absent(piece) else _SELECTS.positions(piece):
        match = _SELECT.match(piece.text, at)
        if match is None:
            continue
        names = [column.split()[-1].rpartition(".")[2].strip('`"[]') for column in match["columns"].split(",") if column.strip()]
        place = match.start("rows")
        for row in match["rows"].splitlines(keepends=True):
            mark = "|" if "|" in row else "\t"
            cells = row.rstrip("\r\n").split(mark)
            if len(cells) != len(names):
                break
            start = place
            for name, cell in zip(names, cells, strict=True):
                value = cell.strip()
                if value and is_secret_under(name, value, True):
                    first = start + cell.find(value)
                    yield Span(first, first + len(value), "password")
                start += len(cell) + 1
            place += len(row)


def _below(text: str, begin: int) -> Iterator[Span]:
    end = text.find("\n", begin, begin + 700)
    if end < 0:
        return
    header = text[begin:end]
    if _IN_CODE.search(header):
        return
    mark = "|" if header.count("|") > 1 else next((mark for mark in "\t;," if mark in header), "")
    if not mark or text.find(mark, end, end + 300) < 0:
        return
    heads = [cell.strip(" \"'`*\r") for cell in header.split(mark)]
    if not 2 <= len([head for head in heads if head]) <= 40 or max(map(len, heads)) > 40:
        return
    wanted = {place: kind for place, head in enumerate(heads) if (kind := _kind(head, heads))}
    if not wanted:
        return
    at = end + 1
    for _ in range(_ROWS):
        row = _LINE.match(text, at)
        if row is None or mark not in row[0]:
            return
        cells = _cells(row[0], mark)
        if len(cells) != len(heads):
            return
        for place, kind in wanted.items():
            start, cell = cells[place]
            value = cell.strip(" \"'`*\r")
            if value and not re.fullmatch(r"[-:= ]*", value) and _fits(value, kind):
                first = at + start + cell.find(value)
                yield Span(first, first + len(value), "password")
        at = row.end() + 1
        if at >= len(text):
            return


def _kind(head: str, heads: list[str]) -> str:
    """Return what a column with this heading holds: `any` secret, the digits of a `code`, or nothing relevant ("")."""
    if re.fullmatch(r"(?i)(?:.*[_ -])?(?:totp|otpauth|otp|2fa|mfa|seed)(?:[_ -]?(?:secret|key|seed|url|auth|uri|phrase))?", head):
        return "any"
    if _SECRETS.fullmatch(head):
        return "code"
    words = [meaning_of(word) for word in TOKEN.findall(head)]
    if (
        any(meaning & Meaning.HARMLESS or (meaning & Meaning.BEFORE and not meaning & Meaning.OWNER) for meaning in words)
        or not 1 <= len(words) <= 3
    ):
        return ""
    if any(meaning & (Meaning.STRONG | Meaning.PIN) for meaning in words):
        return "code"
    if any(meaning & (Meaning.WEAK | Meaning.PASSWORD) for meaning in words):
        others = [meaning_of(word) for other in heads if other != head for word in TOKEN.findall(other)]
        opened = any(meaning & (Meaning.LOCK | Meaning.KEYBOX) for meaning in (*others, *words)) or any(
            meaning & Meaning.OWNER and not meaning & Meaning.BEFORE for meaning in words
        )
        return "code" if opened or any(meaning & Meaning.PASSWORD for meaning in words) else ""
    return ""


def _fits(value: str, kind: str) -> bool:
    if is_stand_in(value):
        return False
    if kind == "any":
        return len(value) >= 6
    return (
        re.fullmatch(r"[#*]?\d[\d -]{1,14}[#*]?|[A-Z]{0,2}\d{1,6}[A-Z]{0,2}\d{1,6}[#*]?", value) is not None
        and sum(map(str.isdigit, value)) >= 3
    )


def _cells(row: str, mark: str) -> list[tuple[int, str]]:
    cells, at, quoted, start = list[tuple[int, str]](), 0, False, 0
    for at, letter in enumerate(row):
        if letter == '"' and mark in ",;\t":
            quoted = not quoted
        elif letter == mark and not quoted:
            cells.append((start, row[start:at]))
            start = at + 1
    return [*cells, (start, row[start:])]


def in_backup_codes(piece: Text) -> Iterator[Span]:
    """Find all codes of a list below a heading such as `backup codes`, in one column or several, numbered or not."""
    text = piece.text
    positions = [] if _BACKUP_ANCHORS.absent(piece) else _BACKUP_ANCHORS.positions(piece)
    if piece.beyond:
        positions += [at for word in _BACKUP_BEYOND for at in positions_of(piece.lower, word)]
    done = -1
    for at in sorted(positions):
        heading = _BACKUP.match(text, at) if at >= done else None
        if heading is None:
            continue
        codes: list[tuple[int, int]] = []
        place, empty = heading.end(), 0
        for _ in range(_MAX_LINES):
            line = _LINE.match(text, place)
            if line is None:
                break
            here = _codes_of(text, line.start(), line.end())
            if here:
                codes += here
                empty = 0
            elif text[line.start() : line.end()].strip():
                empty += 1
                if empty > (2 if not codes else 0):
                    break
            place = line.end() + 1
            if place >= len(text) or len(codes) >= _MAX_CODES:
                break
        if len(codes) >= 2 and 3 * sum(DIGIT.search(text[start:end]) is not None for start, end in codes) > 2 * len(codes):
            done = codes[-1][1]
            for start, end in codes:
                yield Span(start, end, "password")


def _codes_of(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the codes of a line that contains little else."""
    codes = [
        match.span("code") for match in _CODE.finditer(text, start, end) if DIGIT.search(match["code"]) or "-" in match["code"]
    ]
    rest = sum(map(str.isalpha, text[start:end])) - sum(map(str.isalpha, "".join(text[first:last] for first, last in codes)))
    return codes if rest <= 12 + 2 * len(codes) else []
