"""The unknown rate and its alarm as metrics of an MLflow run."""

from dataclasses import dataclass, field

from unseen.alarm import AlarmState, UnknownRateAlarm
from unseen.errors import import_extra
from unseen.verdicts import Verdicts


@dataclass
class AlarmLogger:
    """Log `unknown_rate`, `threshold`, `alarm_evidence` and `alarm` of each batch to the active run.

    The alarm is `rule`: false ones are at least `rule.between` images apart on average. Verdicts by a threshold that
    warms up do not count.
    """

    rule: UnknownRateAlarm = field(default_factory=UnknownRateAlarm)
    state: AlarmState = field(init=False)

    def __post_init__(self) -> None:
        """Start the test."""
        self.state = self.rule.start()

    def log(self, verdicts: Verdicts) -> bool:
        """Log the metrics of a batch, by the number of images so far; return whether the alarm is raised."""
        unknown = verdicts.unknown[~verdicts.warming].cpu().numpy()
        self.state = self.rule.update(self.state, unknown)
        is_raised = self.state.raised_at is not None
        metrics = {"alarm_evidence": self.rule.share(self.state), "alarm": float(is_raised)}
        if len(verdicts):
            metrics |= {"unknown_rate": float(verdicts.unknown.double().mean())}
            metrics |= {"threshold": float(verdicts.threshold[-1])}
        import_extra("mlflow", "mlflow").log_metrics(metrics, step=self.state.seen)
        return is_raised
