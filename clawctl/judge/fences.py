"""Text of a turn as the judge may be shown it: nothing in it can end a block, speak for another, or look like an answer.

Three things are taken from the text before it stands between fences. Characters that nobody sees (zero-width, direction, tag and
control characters) go, so that nothing hides in them or is broken up by them. What a chat tokenizer might read as a control token
(`<|im_end|>`, `</s>`, `[/INST]`, `<think>`, also in full-width letters) is broken by a space: the words stay readable, the token is
gone. The same is done to what the judge itself answers with (`\\boxed{1}`, `[HINT_START]`), so that an answer which merely repeats
the turn holds no vote, and to whatever looks like a fence.
"""

import re
import secrets

# Control characters, surrogates, and the format characters (Cf) and variation selectors that draw nothing.
_UNSEEN = re.compile(
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
    """A fence that nobody who wrote the turn can have known: it is drawn for each call."""
    return secrets.token_hex(3)


def visible(text: str) -> str:
    """`text` without characters that nobody sees."""
    return _UNSEEN.sub("", text)


def neutral(text: str, fence: str) -> str:
    """`text` for a block behind `fence`. Ordinary text, code and markup come back as they are."""
    text = visible(text)
    for pattern in _BROKEN:
        text = pattern.sub(r"\1 ", text)
    while fence in text:  # taking one out may join the halves of another
        text = text.replace(fence, "")
    return text


def fenced(blocks: list[tuple[str, str]], fence: str) -> str:
    """Named blocks, each from its own header to the next one, closed by `<fence end>`."""
    body = "\n".join(f"<{fence} {name}>\n{neutral(text, fence)}" for name, text in blocks)
    return f"{body}\n<{fence} end>"
