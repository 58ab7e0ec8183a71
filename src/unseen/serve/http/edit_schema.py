"""What goes in and out of the routes from unknown to known."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from unseen.serve.http.schema import MOST, RequestBody

Group = Annotated[int, Field(ge=1, lt=1 << 31)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Edit(RequestBody):
    """An edit; `after` is the number of the last edit that the caller knows of, and another one is refused, 409."""

    after: int | None = Field(None, ge=0, description="`edit` of the groups that the caller has seen.")


class Promote(Edit):
    """A group, or one kept sample, becomes a known name."""

    verb: Literal["promote"]
    name: Name
    group: Group | None = Field(None, description="Number of a group.")
    seq: int | None = Field(None, ge=0, description="Number of one kept sample, instead of a group.")
    vector: Annotated[list[FiniteFloat], Field(max_length=MOST)] | None = Field(
        None, description="Text vector of the name, where the service has no encoder and no negative is called so."
    )


class Rename(Edit):
    """A known name is called otherwise."""

    verb: Literal["rename"]
    name: Name
    new: Name


class Retire(Edit):
    """A known name becomes a negative."""

    verb: Literal["retire"]
    name: Name


class Dismiss(Edit):
    """A group is not shown again."""

    verb: Literal["dismiss"]
    group: Group


class Correct(Edit):
    """What a person says that kept samples show, by their numbers."""

    verb: Literal["correct"]
    names: dict[Annotated[str, Field(pattern="^[0-9]{1,18}$")], Annotated[str, Field(max_length=256)]] = Field(
        min_length=1, description='By sequence number: a name, or "unknown" for none of the names.'
    )


class Undo(Edit):
    """The last edit is taken back: exactly where nothing was observed since, else by its names."""

    verb: Literal["undo"]


AnyEdit = Promote | Rename | Retire | Dismiss | Correct | Undo


class EditInfo(BaseModel):
    """The record of an edit."""

    model_config = ConfigDict(extra="allow")

    edit: int
    verb: Literal["promote", "rename", "retire", "dismiss", "correct", "undo"]
    seq: int = Field(description="The first sample that was judged after it.")


class ReviewedSample(BaseModel):
    """A kept sample with its verdict and the word of a person."""

    seq: int
    key: str
    verdict: str
    name: str | None
    nearest: str
    margin: float
    group: int
    user: str | None
    label: str


class ReviewList(BaseModel):
    """Kept samples, and edits since the last reset, oldest first."""

    samples: list[ReviewedSample]
    edits: list[EditInfo]


class WordInfo(BaseModel):
    """A word and its share of the softmax over all words."""

    word: str
    share: float


class GroupInfo(BaseModel):
    """Unknown samples that belong together, by sequence number."""

    number: int = Field(description="Stays with the group as the stream goes on.")
    size: int
    distinct: int
    tightness: float
    first: int
    last: int
    growing: bool
    nearest: str
    looks_known: bool
    exemplars: list[int]
    keys: list[int] = Field(description="Sequence numbers of all samples, the most central first.")
    pictured: list[int] = Field(description="The most central samples that have a thumbnail.")
    suggestions: list[WordInfo]


class GroupList(BaseModel):
    """Groups, the largest first."""

    edit: int = Field(description="Number of the last edit, for `after`.")
    groups: list[GroupInfo]


class SimilarSample(BaseModel):
    """An earlier sample."""

    seq: int
    known: bool
    nearest: str
    cosine: float


class ExplanationInfo(BaseModel):
    """Why a sample gets its verdict."""

    seq: int
    key: str | None
    verdict: str
    name: str | None
    nearest: str
    margin: float
    threshold: float
    p_known: float
    warming: bool
    names: list[WordInfo]
    negatives: list[WordInfo]
    known_share: float
    text_margin: float
    learned_margin: float
    similar: list[SimilarSample]
    pictured: list[int] = Field(description="Of the sample and the similar ones, those that have a thumbnail.")
    why: str
