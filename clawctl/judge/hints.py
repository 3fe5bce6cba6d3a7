"""Which hint the teacher is given."""

from collections.abc import Sequence

from clawctl.judge.prompts import Vote


def hint_candidates(votes: Sequence[Vote], reward: float | None, min_chars: int) -> list[str]:
    """Hints of the votes that agree with the verdict, each once, the chosen one first; none without a verdict.

    Two hints are the same if they differ in case or spaces only. Chosen is what most votes say; among equals the shortest.
    OpenClaw-RL takes the longest hint of any single positive vote. A vote that lost is a judge that misread the turn, so its
    hint is not used; and among hints that passed the length filter a longer one more often rambles, repeats the turn, or gives the
    answer away, all of which the teacher would copy.
    """
    if reward is None:
        return []
    spoken = [" ".join(vote.hint.split()) for vote in votes if vote.hint and vote.score == reward]
    counts: dict[str, int] = {}
    words: dict[str, str] = {}
    for hint in spoken:
        if len(hint) >= min_chars:
            words.setdefault(hint.casefold(), hint)
            counts[hint.casefold()] = counts.get(hint.casefold(), 0) + 1
    return [words[same] for same in sorted(counts, key=lambda same: (-counts[same], len(same), same))]
