"""What a secret looks like: rules kept as data, each with the words without which it cannot match.

Formats of keys come from detect-secrets (Yelp), which is maintained, small and works offline: we take its compiled expressions and
call none of its code that would ask a service whether a key is alive. What it lacks stands here: newer formats (Anthropic, OpenAI
projects, Google, GitHub fine-grained, Hugging Face, …), whole PEM blocks instead of their first line, passwords in addresses,
assignments and prose, cards with their checksum, e-mail addresses and phone numbers.
"""

import importlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["api_key", "token", "password", "private_key", "card", "email", "phone"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Check = Callable[[re.Match[str]], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """One expression, tried only where one of its anchors stands: a whole text is searched for words, not for expressions.

    What is taken out is the group `value` (of an assignment: `quoted` or `bare`), or all of the match where it has none.
    """

    kind: Kind
    anchors: tuple[str, ...]  # in lower case if `fold`; none: the expression is tried everywhere
    pattern: re.Pattern[str]
    check: Check | None = None
    fold: bool = False
    before: tuple[int, ...] = (0,)  # how far before its anchor a match may begin

    def match_at(self, text: str, anchor_at: int) -> re.Match[str] | None:
        """The secret whose anchor stands at `anchor_at`, if there is one."""
        for back in self.before:
            match = self.pattern.match(text, anchor_at - back) if anchor_at >= back else None
            if match is not None and (self.check is None or self.check(match)):
                return match
        return None

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Everywhere: for a rule without anchors."""
        return (match for match in self.pattern.finditer(text) if self.check is None or self.check(match))


def make_rules(kinds: frozenset[Kind]) -> list[Rule]:
    """The rules of these kinds, in the order in which they win where they overlap."""
    return [rule for rule in (*_PRIVATE_KEYS, *_API_KEYS, *_library_rules(), *_TOKENS, *_PASSWORDS, *_PEOPLE) if rule.kind in kinds]


def entropy(text: str) -> float:
    """Bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values()) if text else 0.0


# ---- keys with a format of their own ---------------------------------------------------------------------------------------

# Module and class in detect_secrets.plugins, the words that a match begins with, and how far before them it does. Left out: those
# that know no format but a word beside any text (cloudant, softlayer, ibm), artifactory's and discord's, which match words, and
# openai's, which takes quadratic time and knows less than ours.
_HERE = (0,)
_LIBRARY: tuple[tuple[str, str, str, tuple[int, ...]], ...] = (
    ("aws", "AWSKeyDetector", "AKIA ASIA ABIA ACCA A3T aws AWS Aws", _HERE),
    ("azure_storage_key", "AzureStorageKeyDetector", "AccountKey=", _HERE),
    ("github_token", "GitHubTokenDetector", "ghp_ gho_ ghu_ ghs_ ghr_", _HERE),
    (
        "gitlab_token",
        "GitLabTokenDetector",
        "glpat- gldt- glft- glsoat- glrt- GR1348941 glcbt- glimt- glptt- glagent- gloas-",
        (0,),
    ),
    ("mailchimp", "MailchimpDetector", "-us", (32,)),
    ("pypi_token", "PypiTokenDetector", "pypi-", _HERE),
    ("sendgrid", "SendGridDetector", "SG.", _HERE),
    ("slack", "SlackDetector", "xox https://hooks.slack.com", _HERE),
    ("square_oauth", "SquareOAuthDetector", "sq0csp-", _HERE),
    ("stripe", "StripeDetector", "sk_live_ rk_live_", _HERE),
    ("telegram_token", "TelegramBotTokenDetector", ":AA", (10, 9, 8)),  # BotFather's keys all begin so behind the colon
    ("twilio", "TwilioKeyDetector", "AC SK", _HERE),
)


def _library_rules() -> Iterator[Rule]:
    for module, name, anchors, before in _LIBRARY:
        plugin = getattr(importlib.import_module(f"detect_secrets.plugins.{module}"), name)
        for pattern in plugin.denylist:
            yield Rule("api_key", tuple(anchors.split()), pattern, _stands_alone, before=before)


def _stands_alone(match: re.Match[str]) -> bool:
    """Not a piece of something longer (base64, a hash), which the library's expressions would take, and not made of words."""
    alone = not match.string[max(0, match.start() - 1) : match.start()].isalnum()
    return alone and (_mixed(match[0]) or entropy(match[0]) >= 3.0)


def _mixed(text: str) -> bool:
    return any(letter.isdigit() for letter in text) and any(letter.isalpha() for letter in text)


def _has_dense_run(match: re.Match[str]) -> bool:
    """A run of letters and digits that is no word: names with a key's prefix (`sk-learn-…`) have none."""
    return any(_mixed(run) and entropy(run) >= 3.0 for run in re.findall(r"[A-Za-z0-9]{12,}", match[0]))


def _api_key(anchors: str, rest: str, check: Check | None = _has_dense_run) -> Rule:
    """A key that begins with one of `anchors`, then `rest`."""
    begin = "|".join(map(re.escape, anchors.split()))
    return Rule("api_key", tuple(anchors.split()), re.compile(rf"(?<![A-Za-z0-9])(?:{begin}){rest}"), check)


def _is_mixed(match: re.Match[str]) -> bool:
    return _mixed(match[0])


_API_KEYS = (
    _api_key("sk-", r"[A-Za-z0-9_-]{20,512}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek, …
    _api_key("sk_live_ rk_live_ sk_test_ rk_test_", r"[A-Za-z0-9]{16,247}"),  # Stripe
    _api_key("whsec_", r"[A-Za-z0-9+/=]{24,128}"),
    _api_key("github_pat_ ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9_]{22,255}"),
    _api_key("AIza", r"[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", _is_mixed),  # Google
    _api_key("GOCSPX- ya29.", r"[A-Za-z0-9_-]{20,2048}", _is_mixed),
    _api_key("hf_", r"[A-Za-z0-9]{30,40}(?![A-Za-z0-9])", lambda match: entropy(match[0]) >= 3.5),  # Hugging Face
    _api_key("xoxa xoxb xoxp xoxo xoxs xoxr xoxe xapp", r"(?:\.xox[a-z])?-[A-Za-z0-9-]{10,250}"),  # Slack
    _api_key("gsk_ xai- pplx- nvapi- tgp_v1_ tvly- csk- fw_", r"[A-Za-z0-9_-]{20,128}"),  # other models' and search keys
    _api_key("npm_ dckr_pat_ dckr_oat_ dop_v1_ doo_v1_ dor_v1_", r"[A-Za-z0-9_-]{24,128}"),
    _api_key("shpat_ shpca_ shppa_ shpss_ lin_api_ figd_ ntn_ glsa_ rubygems_ sbp_", r"[A-Za-z0-9_-]{24,128}"),
    _api_key("hvs. hvb. tskey- ATATT3 dapi NRAK- sntrys_ PMAK- glc_", r"[A-Za-z0-9_=-]{24,512}"),
)

# ---- tokens that travel in headers -----------------------------------------------------------------------------------------


def _is_credential(match: re.Match[str]) -> bool:
    """Not prose (`bearer of bad news`); `Basic` credentials are short base64, in which no digit need be."""
    return _mixed(match["value"]) or ("authorization" in match[0].lower() and entropy(match["value"]) >= 2.5)


_JWT = r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9_-]{8,8000}\.[A-Za-z0-9_-]{8,8000}(?:\.[A-Za-z0-9_-]{0,8000}){0,3}"
_HEADER = r"""(?ix)(?: \bbearer [ ]+
    | \bauthorization \\{0,3}["']? \s{0,3} [:=] \s{0,3} \\{0,3}["']? (?:basic|token|digest) [ ]+ )
    (?P<value> [\w.~+/=-]{8,4096} )"""
_TOKENS = (
    Rule("token", ("eyJ",), re.compile(_JWT)),
    Rule("token", ("bearer", "authorization"), re.compile(_HEADER), _is_credential, fold=True),
)

# ---- private keys ----------------------------------------------------------------------------------------------------------

_PRIVATE_KEYS = (
    Rule(  # to its end line, or as far as it goes where the end is missing
        "private_key",
        ("-----BEGIN ",),
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----"
            r"(?P<body>(?:(?!-----)[A-Za-z0-9+/=\s\\:,.()-]){16,32768})(?:-----END [A-Z0-9 ]{0,24}PRIVATE KEY(?: BLOCK)?-----)?"
        ),
        lambda match: len(re.sub(r"\\[nrt]|[^A-Za-z0-9+/=]", "", match["body"])) >= 32,
    ),
    Rule(
        "private_key",
        ("Private-Lines: ",),
        re.compile(r"Private-Lines: \d{1,4}(?P<value>(?:(?:\s|\\r|\\n){1,4}[A-Za-z0-9+/=]{4,80}){1,400})"),
    ),
    Rule("private_key", ("AGE-SECRET-KEY-1",), re.compile(r"AGE-SECRET-KEY-1[A-Z0-9]{50,60}")),
)

# ---- passwords -------------------------------------------------------------------------------------------------------------

# The last word of a name, which says what it is, and what may stand before it.
_NAMED_PASSWORD = r"pass(?:words?|wd|phrase|code|wort)?|pswd|pwd|contrase[ñn]a|пароль|密码"
_NAMED_KEY = r"secret|token|credentials?|key"
_WORDS = ("pass", "pswd", "pwd", "contrase", "пароль", "密码", "secret", "token", "credential", "key")
_SUFFIX = r"(?:[_-]?(?:\d{1,3}|prod|dev|test|live|old|new|value|hash|b64|access[_-]?key|key))?"
_NAME = re.compile(rf"(?:(?P<password>{_NAMED_PASSWORD})|(?P<key>{_NAMED_KEY})){_SUFFIX}$", re.IGNORECASE)
_BEFORE_PASS = re.compile(r"(?:^|[^a-z]|db|my|root|user|admin)$")
_BEFORE_KEY = re.compile(
    r"(?:secret|api|access|auth|account|encryption|signing|private|service|master|app|storage)[_-]?$", re.IGNORECASE
)
_QUOTE = r"""\\{0,3}["'`]"""
_ASSIGNED = re.compile(
    rf"""(?P<name>(?:{_NAMED_PASSWORD}|{_NAMED_KEY})[\w-]{{0,14}})"""
    rf"""(?:{_QUOTE})?\]?[ \t]{{0,8}}(?::=|=>|={{1,3}}|:(?!/)|[ ](?:is|was|ist|est|es)[ ]:?)[ \t]{{0,8}}"""
    rf"""(?:(?P<quote>{_QUOTE})(?P<quoted>[^"'`\n\\]{{3,512}})(?P=quote)|(?P<bare>[^\s"'`<>,;\\]{{3,512}}[^\s"'`<>,;\\.:)\]}}!?]))""",
    re.IGNORECASE,
)

_STAND_INS = """
password passwd passphrase pass pwd secret token key apikey api_key string str text none null nil true false undefined
required optional hidden changeme change_me change-me example placeholder redacted unknown empty todo tbd yes no bool int bytes
object value default wrong incorrect invalid correct expired missing weak strong reset protected encrypted hashed stored saved
"""
_PLACEHOLDERS = frozenset(_STAND_INS.split())
_TEMPLATE = re.compile(
    r"""(?ix)^(?: <.*>? | \{.*\}+ | \$\{?\w.* | %\w+% | \[redacted:.* | @\w+@ | .*\$\{.* | .*\.\.\.$ | \.{3}.* | x{3,}.*
    | your[_-].* | my[_-]?(?:password|secret|token|key).* | (?:sk|pk)-(?:x+|\.+|your.*) | [*•.#x-]+ )$"""
)
_CODE = re.compile(
    r"""(?x) ^[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+\W*$ | ^[A-Za-z_][\w.]*[(\[] | ^self\. | ^os\.
    | ^~?\.{0,2}/[a-z0-9_.-]+(?:/[\w./-]*)?$  # a path"""
)


def is_secret_under(name: str, value: str, quoted: bool) -> bool:
    """Whether `value` is a secret, given that it stands under `name`: a name says much, its value must still look like one.

    A password may be anything that is no placeholder or code; unquoted, in prose, it must not look like a word. What is named
    key, secret or token must look random.
    """
    found = _NAME.search(name[-64:])
    value = value.strip()
    if found is None or not _is_name(found) or value.lower() in _PLACEHOLDERS or _TEMPLATE.match(value) or _CODE.match(value):
        return False
    if found["password"] is not None:
        odd = any(not letter.isalpha() and letter not in "_.-" for letter in value.rstrip(".:!?"))
        return (quoted and len(value) >= 4 and (" " not in value or odd)) or (odd and len(value) >= 5 and not value.endswith(":"))
    return len(value) >= 12 and " " not in value and _mixed(value) and entropy(value) >= 3.0 and not _is_wordy(value)


def _is_name(found: re.Match[str]) -> bool:
    """`compass` names no password and `keyboard_key` no key: the shortest words count only behind certain others."""
    before = found.string[: found.start()]
    if found[0].lower().startswith("key"):
        return _BEFORE_KEY.search(before) is not None
    return found[0].lower() != "pass" or found[0][0].isupper() or _BEFORE_PASS.search(before) is not None


def _is_wordy(value: str) -> bool:
    """Words and small numbers with separators between them (`my-db-secret-2`), a date, a version: a name, not a key."""
    return all(re.fullmatch(r"[A-Za-z]{0,12}|\d{1,4}|v\d+", part) for part in re.split(r"[-_./:]", value)) and len(value) < 40


def _is_assigned(match: re.Match[str]) -> bool:
    if match.string.endswith("[redacted:", 0, match.start()):
        return False
    quoted = match["quoted"] is not None
    before = re.search(r"[\w-]{0,24}$", match.string[max(0, match.start() - 24) : match.start()])
    return is_secret_under((before[0] if before else "") + match["name"], match["quoted"] if quoted else match["bare"], quoted)


def _no_placeholder(match: re.Match[str]) -> bool:
    value = match["value"]
    return value.lower() not in _PLACEHOLDERS and not _TEMPLATE.match(value)


_PASSWORDS = (
    Rule("password", ("://",), re.compile(r"://[^\s/:@'\"<>\\]{0,64}:(?P<value>[^\s/@'\"<>\\]{3,128})@"), _no_placeholder),
    Rule("password", _WORDS, _ASSIGNED, _is_assigned, fold=True),
    Rule(
        "password",
        ("curl ", "wget "),
        re.compile(r"(?:curl|wget)\b[^\n]{0,300}?\s(?:-u|--user)[ =]{1,2}[\"']?[^\s:\"']{1,64}:(?P<value>[^\s\"']{3,128})"),
        _no_placeholder,
    ),
    Rule(
        "password",
        ("--", "sshpass -p", "identified by ", "IDENTIFIED BY "),
        re.compile(
            r"""(?ix)(?: --[\w-]{0,20}(?:password|passwd|token|secret|api-key|apikey)[ ] | sshpass[ ]-p[ ]? | identified[ ]by[ ] )
            \\{0,3}["']? (?P<value>[^\s"'\\-][^\s"'\\]{3,256})"""
        ),
        lambda match: _no_placeholder(match) and not _CODE.match(match["value"]) and not match["value"].isalpha(),
    ),
)

# ---- cards and people --------------------------------------------------------------------------------------------------------

_CARD = re.compile(
    r"(?:4\d{3}|5[1-5]\d{2}|2[2-7]\d{2}|6011|64[4-9]\d|65\d{2}|62\d{2}|35\d{2})([ -]?)\d{4}\1\d{4}\1\d{4}"
    r"|3[47]\d{2}([ -]?)\d{6}\2\d{5}|3(?:0[0-5]|[689]\d)\d([ -]?)\d{6}\3\d{4}"
)  # by issuer: Visa, Mastercard, Discover, UnionPay, JCB; American Express; Diners


def passes_luhn(digits: str) -> bool:
    """The checksum of card numbers (ISO/IEC 7812-1)."""
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


def _is_card(match: re.Match[str]) -> bool:
    digits = re.sub(r"\D", "", match[0])
    return len(set(digits)) > 1 and _CARD.fullmatch(match[0]) is not None and passes_luhn(digits)


def _is_phone(match: re.Match[str]) -> bool:
    return 8 <= sum(letter.isdigit() for letter in match[0]) <= 15


_PEOPLE = (
    Rule("card", (), re.compile(r"[2-6](?<![\w.-].)\d{3}[ -]?\d{4,6}[ -]?\d{4,5}(?:[ -]?\d{4})?(?![\w-]|\.\d)"), _is_card),
    Rule("email", (), re.compile(r"(?<![\w.%+-])[\w%+-][\w.%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])")),
    Rule("phone", ("+",), re.compile(r"\+(?<![\w+.-].)\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,6}(?![\w-]|\.\d)"), _is_phone),
    Rule("phone", (), re.compile(r"[(\d](?<![\w+.-].)(?:\d{3}\) ?\d{3}[ .-]|\d{2}[-.]\d{3}[-.])\d{4}(?![\w-]|\.\d)"), _is_phone),
)  # fmt: skip
