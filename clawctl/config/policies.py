"""Settings of `policies:`, which policy answers and learns from the requests of a key."""

from typing import Literal

from pydantic import Field

from clawctl.config.section import Section


class PoliciesConfig(Section):
    per: Literal["shared", "key", "user", "shared+key", "shared+user"] = "shared"
    """`shared`: one policy answers everybody and learns from everybody. `key`: a key with a policy of its own is answered by it and
    trains no other one; all other keys share one. `clawctl keys add anna --policy anna` makes such a key. `user`: as `key`, and a
    key that was made with `--names-users` speaks for the named key in its header `X-User` or field `user`. `shared+key` and
    `shared+user`: half of the adapter's rank is the shared policy, which keys made with `--teaches-shared` train too, and the other
    half is the person's own. Needs `train.lora`."""
    loaded: int = Field(8, ge=1)
    """Unless `shared`: how many of the own policies stay loaded. The least recently used one makes room for the next, whose first
    request waits until it is loaded."""

    @property
    def per_person(self) -> bool:
        """Whether a key may have a policy of its own."""
        return self.per != "shared"

    @property
    def names_users(self) -> bool:
        return "user" in self.per

    @property
    def is_stacked(self) -> bool:
        """Whether a person's policy is trained on top of the shared one."""
        return "+" in self.per
