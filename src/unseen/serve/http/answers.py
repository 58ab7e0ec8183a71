"""What goes out as JSON: the models that OpenAPI shows, and the codes of errors."""

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from unseen.serve.stream.store import Status

CODE_OF_STATUS = {400: "request", 401: "key", 403: "scope", 404: "not_found", 405: "method", 408: "slow"}
CODE_OF_STATUS |= {409: "conflict", 413: "size", 415: "media_type", 422: "invalid", 429: "share", 500: "defect"}
CODE_OF_STATUS |= {503: "busy", 507: "disk"}
CODE_OF_KIND = {
    "FeatureError": "features",
    "LabelError": "labels",
    "SettingError": "settings",
    "StateError": "state",
    "ImageError": "image",
    "EncoderError": "encoder",
    "MissingExtra": "extra",
}
TOO_LARGE = ("batch", "body", "values", "names", "memory", "streams")
TOO_MUCH_AT_ONCE = ("bytes", "requests", "rate", "reads", "queue", "listeners", "jobs")
OTHERS = ("origin", "key_expired", "key_reused", "parameters", "edit")
CODES = (*CODE_OF_STATUS.values(), *CODE_OF_KIND.values(), *TOO_LARGE, *TOO_MUCH_AT_ONCE, *get_args(Status), *OTHERS)


class Error(BaseModel):
    """What is wrong: expected, got, remedy. `code` is for machines and does not change from version to version."""

    error: str
    code: Literal[CODES]  # type: ignore[valid-type]
    message: str


class EditInfo(BaseModel):
    """The record of an edit, with what it did."""

    model_config = ConfigDict(extra="allow")

    edit: int
    verb: Literal["promote", "rename", "retire", "dismiss", "correct", "undo"]
    seq: int = Field(description="The first sample that was judged after it.")


class VerdictRecord(BaseModel):
    """The verdict on one sample; `seq` is its number in the stream, where it was observed."""

    key: str | None
    verdict: Literal["known", "doubtful", "unknown"]
    name: str | None
    nearest: str
    margin: float | None
    threshold: float | None
    p_known: float | None = Field(description="Probability that the sample is known.")
    warming: bool
    likely: str | None = Field(description="Where it is not known: the negative that the sample is nearest to.")
    seq: int | None = None


class SkippedImage(BaseModel):
    """An image of a request that could not be read: its place, what it is called, and why."""

    index: int
    key: str
    reason: str


class VerdictList(BaseModel):
    """Verdicts in the order of the request; `repeated` where an idempotency key was used before."""

    verdicts: list[VerdictRecord]
    repeated: bool
    skipped: list[SkippedImage] = []
    pictured: bool = Field(False, description="Whether there are thumbnails of the samples.")


class StreamSummary(BaseModel):
    """A stream in a list."""

    id: str
    name: str
    owner: str
    detector: str
    created: str
    status: Status
    reason: str = Field(description="Why the stream waits, is damaged or refused, and what to do.")
    seq: int | None = Field(description="Samples observed so far.")


class StreamList(BaseModel):
    """The streams a key may see, and the names of label spaces that streams may be created from."""

    streams: list[StreamSummary]
    spaces: list[str]


class ThresholdInfo(BaseModel):
    """The threshold rule of a stream, and the threshold now."""

    kind: str
    settings: dict[str, Any]
    value: float | None
    warming: bool
    recall_interval: tuple[float, float] | None = Field(
        description="Between which shares of the known samples the threshold keeps, in nine streams of ten."
    )


class AlarmInfo(BaseModel):
    """The alarm on the unknown rate: a sequential test with a stated rate of false alarms."""

    allowed: float | None = Field(description="The unknown rate that is no cause for alarm; null while it is learned.")
    between: float = Field(description="Samples that pass before a false alarm, on average at least.")
    evidence: float = Field(description="Evidence for a higher rate, as a share of what raises the alarm.")
    raised_at: int | None = Field(description="The sample that raised the alarm.")


class StreamInfo(StreamSummary):
    """Everything about an open stream."""

    settings: dict[str, Any]
    threshold: ThresholdInfo
    labels: dict[str, Any] = Field(
        description="The label space: how many `names` and `negatives`, `dim`, `encoder`, `fingerprint`."
    )
    counts: dict[str, int] = Field(
        description="Samples `seen`; `known` or doubtful; `unknown`; that taught either: `taught_known`, ..."
    )
    drift: float = Field(description="Change of recent margins; 1 and above is an alarm.")
    alarm: AlarmInfo
    journal_bytes: int
    memory_bytes: int = Field(description="Bytes of what was learned; quotas count these.")
    replayed: int
    faults: list[str]
    snapshots: list[dict[str, Any]] = Field(description="`snapshot` is its number; `kind`, `bytes`, `time`.")
    recent: dict[str, Any] | None = Field(
        None, description="Where it was asked for: `margins`, and `latest` verdicts with whether each is `pictured`."
    )


class JobInfo(BaseModel):
    """Work that may outlast a request; `stream` is what it made, `error` why it failed."""

    job: str
    status: Literal["running", "done", "failed", "cancelled"]
    stage: str = Field(description="What is being done.")
    done: int = Field(description="Units of the stage, of `total`; 0 of 0 where they are not counted.")
    total: int
    started: str
    stream: str | None
    error: Error | None


class NameList(BaseModel):
    """The known names of a stream."""

    names: list[str]


class ReviewList(BaseModel):
    """Kept samples with their verdicts and the word of a person (`user`), and edits since the last reset."""

    samples: list[dict[str, Any]]
    edits: list[EditInfo]


class GroupList(BaseModel):
    """Groups, the largest first."""

    edit: int = Field(description="Number of the last edit, for `after`.")
    groups: list[dict[str, Any]] = Field(
        description="Each with the `number` that stays with it, `size`, `keys` (its samples, the most central first), "
        "`suggestions` of names, the `nearest` known name, whether it is `growing`, and samples that are `pictured`."
    )


class ExplanationInfo(VerdictRecord):
    """Why a sample gets its verdict: what speaks for it and against it, and similar earlier samples."""

    names: list[dict[str, Any]] = Field(description="Each `word` with its `share` of the softmax over all words.")
    negatives: list[dict[str, Any]]
    known_share: float
    text_margin: float
    learned_margin: float
    similar: list[dict[str, Any]]
    pictured: list[int] = Field(description="Of the sample and the similar ones, those that have a thumbnail.")
    why: str
