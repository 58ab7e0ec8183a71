"""A plugin of FiftyOne: its operator judges the current view. FiftyOne loads this folder; nothing here imports it."""

from typing import Any

from unseen.errors import import_extra
from unseen.integrations.fiftyone import judge


class Judging:
    """What the operator does: a form for names or a state, and verdicts as fields of the samples."""

    @property
    def config(self) -> Any:
        """What it is called."""
        return import_extra("fiftyone.operators", "fiftyone").OperatorConfig(
            name="judge_images", label="unseen: which images are unknown?", dynamic=True, allow_delegated_execution=True
        )

    def resolve_input(self, ctx: Any) -> Any:
        """The form."""
        types = import_extra("fiftyone.operators.types", "fiftyone")
        form = types.Object()
        form.str("names", label="Names that you know", description="With commas between them; or a state file below")
        form.str("state", label="State file", description="Of `unseen detect --state`; it is read, and not changed")
        form.str("field", label="Field", default="unseen", required=True)
        form.view_target(ctx)
        return types.Property(form, view=types.View(label="Which images belong to none of your names?"))

    def execute(self, ctx: Any) -> dict[str, int]:
        """How many images of the view have each verdict."""
        names = [name.strip() for name in (ctx.params.get("names") or "").split(",") if name.strip()]
        state, field = ctx.params.get("state") or None, ctx.params.get("field") or "unseen"
        found = judge(ctx.target_view(), names, state=state, field=field)
        ctx.ops.reload_dataset()
        return dict(found)

    def resolve_output(self, ctx: Any) -> Any:
        """The counts, as they are shown."""
        types = import_extra("fiftyone.operators.types", "fiftyone")
        shown = types.Object()
        for verdict in ("known", "doubtful", "unknown", "skipped"):
            shown.int(verdict, label=verdict)
        return types.Property(shown)


def register(plugin: Any) -> None:
    """Offer the operator to FiftyOne."""
    base = import_extra("fiftyone.operators", "fiftyone").Operator
    plugin.register(type("JudgeImages", (Judging, base), {}))
