"""Makes the text of a turn safe for the judge: it cannot end a block, imitate another speaker, or look like an answer.

Three changes are made before the text is put between fences. (1) Invisible characters (zero-width, direction, tag and control
characters) are removed, because they can hide or split text. (2) A space is inserted into text that a chat tokenizer may read as a
control token (`<|im_end|>`, `</s>`, `[/INST]`, `<think>`, also in full-width letters). The text stays readable, but is no longer a
token. (3) The same is done to the judge's own answer marks (`\\boxed{1}`, `[HINT_START]`) and to text that looks like a fence. An
answer that repeats the turn then contains no vote.
"""

import re
import secrets

# Control characters, surrogates, and the invisible format characters (Cf) and variation selectors.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_ANGLE_OPEN = "<\uff1c\ufe64\u2039\u3008\u27e8"
_BAR = "|\uff5c\u00a6\u2223\u01c0"
_NAMES = (
    r"s|bos|eos|pad|unk|mask|sep|cls|think|thinking|tool_\w+|tools|function_calls?|invoke|system|assistant|user|human|im_start|im_end|"
    r"\w+_of_\w+|endoftext|sys|inst|image|audio|video|extra_id_\d+|unused\d+|fim_\w+"
)
_BROKEN = [
    re.compile(rf"([{_ANGLE_OPEN}])(?=\s*[{_BAR}])"),  # <|im_end|>, <｜User｜>
    re.compile(rf"([{_ANGLE_OPEN}])(?=[{_ANGLE_OPEN}]?/?(?:{_NAMES})\b)", re.IGNORECASE),  # </s>, <think>, <<SYS>>
    re.compile(rf"([{_ANGLE_OPEN}])(?=/?[0-9a-f]{{6}}\b)", re.IGNORECASE),  # <a1b2c3 end>
    re.compile(r"(\[)(?=/?[A-Z][A-Z_]+\])"),  # [/INST], [HINT_START]
    re.compile(r"(\\+boxed)(?=\{)", re.IGNORECASE),
]


def new_fence() -> str:
    """A new random fence for each call, which no author of the turn can know."""
    return secrets.token_hex(3)


def visible(text: str) -> str:
    """`text` without invisible characters."""
    return INVISIBLE.sub("", text)


def neutral(text: str, fence: str) -> str:
    """`text` in the form that is safe in a block with the fence `fence`. Ordinary text, code and markup are unchanged."""
    text = visible(text)
    for pattern in _BROKEN:
        text = pattern.sub(r"\1 ", text)
    while fence in text:  # removing one fence may join the halves of another
        text = text.replace(fence, "")
    return text


def fenced(blocks: list[tuple[str, str]], fence: str) -> str:
    """Named blocks. Each begins with its own header; `<fence end>` closes the last one."""
    body = "\n".join(f"<{fence} {name}>\n{neutral(text, fence)}" for name, text in blocks)
    return f"{body}\n<{fence} end>"
