"""What goes in and out as JSON: the models that requests are checked against and that OpenAPI shows."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from unseen import detectors
from unseen.labels.negatives import NegativeCounts

MOST = 100_000  # an integer setting becomes memory or time
Number = Annotated[int, Field(ge=-MOST, le=MOST)] | Annotated[FiniteFloat, Field(ge=-MOST, le=MOST)]


FAST = Field(fail_fast=True)  # one error is enough
Name = Annotated[str, Field(min_length=1, max_length=256)]

IDEMPOTENCY_KEY = {  # a header, which makes a retry harmless
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 256},
}


CODE_OF_STATUS = {
    400: "request",
    401: "key",
    403: "scope",
    404: "not_found",
    405: "method",
    408: "slow",
    409: "conflict",
    413: "size",
    415: "media_type",
    422: "invalid",
    429: "share",
    500: "defect",
    503: "busy",
    505: "http_version",
    507: "disk",
}
CODE_OF_KIND = {
    "FeatureError": "features",
    "LabelError": "labels",
    "SettingError": "settings",
    "StateError": "state",
    "ImageError": "image",
    "EncoderError": "encoder",
    "MissingExtra": "extra",
}
LIMITS = ("batch", "body", "values", "names", "memory", "quota", "streams", "snapshots")  # what is too much to take
SHARES = ("bytes", "requests", "rate", "reads", "queue", "listeners", "jobs")  # what is too much at once
STATES = ("opening", "waiting", "damaged", "refused")  # of a stream that is not ready
CODES = (
    *CODE_OF_STATUS.values(),
    *CODE_OF_KIND.values(),
    *LIMITS,
    *SHARES,
    *STATES,
    "origin",
    "key_expired",
    "key_reused",
    "parameters",
    "edit",
)


class RequestBody(BaseModel):
    """A request body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Samples(RequestBody):
    """Unit feature vectors, as numbers or as base64 of little-endian float32 rows, or images as base64."""

    features: list[list[FiniteFloat]] | str | None = None
    images: list[str] | None = None
    keys: list[Annotated[str, Field(max_length=1024)]] | None = Field(None, description="What the samples are called.")


class ThresholdBody(RequestBody):
    """How the threshold between known and unknown is set."""

    kind: str = Field("adaptive", max_length=64)
    settings: dict[str, Number] = Field(default_factory=dict)


class StreamBody(RequestBody):
    """A stream to create: from names, from a label space the operator offers, or with one uploaded beside this."""

    names: Annotated[list[Name], FAST] | None = None
    relatives: int = Field(
        NegativeCounts.relatives, ge=0, le=100_000, description="Words that stand beside the names in WordNet."
    )
    everyday: int = Field(NegativeCounts.everyday, ge=0, le=100_000, description="Words for everyday things.")
    far: int = Field(NegativeCounts.far, ge=0, le=100_000, description="Words that are least like the names.")
    never: list[Name] = Field([], max_length=10_000, description="Words of one's own that are none of the names.")
    space: str | None = Field(None, max_length=128)
    name: str = Field("", max_length=128)
    detector: str = Field(detectors.DEFAULT, max_length=64)
    settings: dict[str, Number | bool | Annotated[str, Field(max_length=64)]] = Field(default_factory=dict)
    threshold: ThresholdBody = Field(default_factory=lambda: ThresholdBody(kind="adaptive"))

    @property
    def negatives(self) -> dict[str, Any]:
        """What `LabelSpace.build` is to take for negatives."""
        return self.model_dump(include={"relatives", "everyday", "far", "never"})


class RestoreBody(RequestBody):
    """A snapshot to go back to; 0 is the beginning."""

    snapshot: int = Field(ge=0, le=2**62)


class VerdictRecord(BaseModel):
    """The verdict on one sample; `seq` is its number in the stream, where it was observed."""

    key: str | None
    verdict: Literal["known", "unknown"]
    name: str | None
    nearest: str
    margin: float | None
    threshold: float | None
    p_known: float | None = Field(description="Probability that the sample is known.")
    warming: bool
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
    status: Literal["ready", "opening", "waiting", "damaged", "refused"]
    reason: str = Field(description="Why the stream waits, is damaged or refused, and what to do.")
    seq: int | None = Field(description="Samples observed so far.")


class ThresholdInfo(BaseModel):
    """The threshold rule of a stream, and the threshold now."""

    kind: str
    settings: dict[str, Any]
    value: float | None
    warming: bool
    recall_interval: tuple[float, float] | None = Field(
        description="Between which shares of the known samples the threshold keeps, in nine streams of ten."
    )


class LabelsInfo(BaseModel):
    """The label space of a stream."""

    names: int
    negatives: int
    dim: int
    encoder: str
    fingerprint: str


class Counts(BaseModel):
    """How many samples were observed, called known or unknown, and taught each side."""

    seen: int
    known: int
    unknown: int
    taught_known: int
    taught_unknown: int


class SnapshotInfo(BaseModel):
    """A snapshot of a stream."""

    snapshot: int
    kind: str
    bytes: int
    time: int


class AlarmInfo(BaseModel):
    """The alarm on the unknown rate: a sequential test with a stated rate of false alarms."""

    allowed: float | None = Field(description="The unknown rate that is no cause for alarm; null while it is learned.")
    between: float = Field(description="Samples that pass before a false alarm, on average at least.")
    evidence: float = Field(description="Evidence for a higher rate, as a share of what raises the alarm.")
    raised_at: int | None = Field(description="The sample that raised the alarm.")


class PicturedVerdict(VerdictRecord):
    """A verdict, and whether its thumbnail is kept."""

    pictured: bool


class RecentInfo(BaseModel):
    """The margins of recent samples, and the latest verdicts."""

    margins: list[float]
    latest: list[PicturedVerdict]


class NearNegative(BaseModel):
    """A negative name and the cosine of its vector with that of a known name."""

    name: str
    cosine: float


class NameInfo(BaseModel):
    """A known name with the negatives closest to it."""

    name: str
    nearest: list[NearNegative]


class LabelPage(BaseModel):
    """A page of known names, from number `offset` of `total`."""

    offset: int
    total: int
    names: list[NameInfo]


class AlarmBody(RequestBody):
    """An alarm to start again: with an allowed rate, or with one that is learned anew."""

    allowed: float | None = Field(None, gt=0, lt=1)


class StreamInfo(StreamSummary):
    """Everything about an open stream."""

    settings: dict[str, Any]
    threshold: ThresholdInfo
    labels: LabelsInfo
    counts: Counts
    coverage: float = Field(description="Share of the samples that taught something.")
    moved: dict[str, float] = Field(description="Mean distance of each bank's rows from the frozen text.")
    drift: float = Field(description="Change of recent margins; 1 and above is an alarm.")
    drifting: bool
    alarm: AlarmInfo
    growing: list[int] = Field(description="Groups that grew fast when the unknown samples were last grouped.")
    journal_bytes: int
    memory_bytes: int = Field(description="Bytes of what was learned; quotas count these.")
    disk_bytes: int = Field(description="Bytes on disk now.")
    disk_expected_bytes: int = Field(description="Bytes on disk that it may come to, without snapshots taken by hand.")
    replayed: int
    faults: list[str]
    snapshots: list[SnapshotInfo]
    recent: RecentInfo | None = Field(None, description="Where it was asked for.")


class JobInfo(BaseModel):
    """Work that may outlast a request; `stream` is what it made, `error` why it failed."""

    job: str
    status: Literal["running", "done", "failed", "cancelled"]
    stage: str = Field(description="What is being done.")
    done: int = Field(description="Units of the stage, of `total`; 0 of 0 where they are not counted.")
    total: int
    started: str
    stream: str | None
    error: "Error | None"


class StreamList(BaseModel):
    """The streams a key may see, by id; `next` is where the next page starts, None on the last."""

    streams: list[StreamSummary]
    next: str | None


class Error(BaseModel):
    """What is wrong: expected, got, remedy. `code` is for machines and does not change from version to version."""

    error: str
    code: Literal[CODES]  # type: ignore[valid-type]
    message: str


def request_body(
    model: type[RequestBody], *, raw: dict[str, str] | None = None, form: dict[str, bool] | None = None
) -> dict[str, Any]:
    """The OpenAPI description of a body of several media types, which a route dispatches on itself.

    A JSON model, raw bytes described by media type, or a form whose fields are files (True) or texts.
    """
    content: dict[str, Any] = {"application/json": {"schema": inlined(model.model_json_schema())}}
    for media, meaning in (raw or {}).items():
        content[media] = {"schema": {"type": "string", "format": "binary", "description": meaning}}
    if form:
        kinds = {True: {"type": "string", "format": "binary"}, False: {"type": "string"}}
        fields = {name: kinds[is_file] for name, is_file in form.items()}
        content["multipart/form-data"] = {"schema": {"type": "object", "properties": fields}}
    return {"requestBody": {"required": True, "content": content}}


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose references are written out, so that it stands alone in the document."""
    parts = schema.pop("$defs", {})

    def resolve(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return resolve(parts[node["$ref"].rsplit("/", 1)[1]])
            return {name: resolve(value) for name, value in node.items()}
        return [resolve(item) for item in node] if isinstance(node, list) else node

    return dict(resolve(schema))
