"""The client's verbs from unknown to known: why, groups, edits of the names, and what people say of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Record = dict[str, Any]


class Caller(Protocol):
    """What asks a service."""

    def call(self, method: str, path: str, **content: Any) -> Any:
        """The JSON answer to a request."""


class RemoteEdits:
    """Discovery on one stream of a service.

    `after` is the number of the last edit that you know of (`edit` of `groups()`): where someone else has edited the
    stream since, ServiceError 409 says so and nothing is changed.
    """

    client: Caller
    _path: str

    def groups(self) -> Record:
        """The groups of unknown samples, and the number of the last edit."""
        return dict(self.client.call("GET", f"{self._path}/groups"))

    def explain(self, seq: int) -> Record:
        """Why a kept sample gets its verdict."""
        return dict(self.client.call("GET", f"{self._path}/explain/{seq}"))

    def promote(
        self,
        name: str,
        *,
        group: int | None = None,
        seq: int | None = None,
        vector: Sequence[float] | None = None,
        after: int | None = None,
    ) -> Record:
        """Make a known name of a group or of one kept sample; `vector` is its text where the service cannot encode."""
        return self._edit("promote", name=name, group=group, seq=seq, vector=vector, after=after)

    def rename(self, name: str, new: str, *, after: int | None = None) -> Record:
        """Call a known name otherwise."""
        return self._edit("rename", name=name, new=new, after=after)

    def retire(self, name: str, *, after: int | None = None) -> Record:
        """Move a known name to the negatives."""
        return self._edit("retire", name=name, after=after)

    def dismiss(self, group: int, *, after: int | None = None) -> Record:
        """Show a group never again."""
        return self._edit("dismiss", group=group, after=after)

    def correct(self, names: Mapping[int, str], *, after: int | None = None) -> Record:
        """Keep what a person says that kept samples show, by sequence number."""
        return self._edit("correct", names={str(seq): name for seq, name in names.items()}, after=after)

    def undo(self, *, after: int | None = None) -> Record:
        """Take back the last edit."""
        return self._edit("undo", after=after)

    def edits(self) -> list[Record]:
        """What people changed, oldest first."""
        return list(self.client.call("GET", f"{self._path}/edits")["edits"])

    def review(self) -> list[Record]:
        """The kept samples with their verdicts and what people said."""
        return list(self.client.call("GET", f"{self._path}/review")["samples"])

    def _edit(self, verb: str, **body: Any) -> Record:
        sent = {name: value for name, value in body.items() if value is not None}
        return dict(self.client.call("POST", f"{self._path}/{verb}", json=sent))
