import json
import math

import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.nn.functional import normalize, one_hot
from typer.testing import CliRunner

from helpers.streams import space, stream, unit
from unseen.errors import FeatureError, SettingError
from unseen.scan import naive
from unseen_bench import theory as gap
from unseen_bench.cli.commands import gap as command

KAPPA = 0.2


def problem(samples=40, classes=4, dim=6, seed=0, *, soft=False, sharp=0.05):
    """Clustered samples and their targets."""
    centres = unit(classes, dim, seed=seed)
    label = torch.arange(samples) % classes
    z = normalize(centres[label] + 0.5 * unit(samples, dim, seed=seed + 1), dim=1)
    return z, torch.softmax(z @ centres.T / sharp, dim=1) if soft else one_hot(label, classes).double()


def loss(bank, z, targets, kappa=KAPPA):
    return -(targets * torch.log_softmax(z @ bank.T / kappa, dim=1)).sum()


@pytest.mark.parametrize("soft", [False, True])
def test_gradient_on_the_sphere_vanishes_at_the_optimum(soft):
    z, targets = problem(soft=soft)
    found = gap.optimal_prototypes(z, targets, kappa=KAPPA, tol=1e-6, steps=300)
    bank = found.bank.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(bank, z, targets), bank)
    tangent = gradient - (gradient * found.bank).sum(1, keepdim=True) * found.bank
    assert float(tangent.abs().max()) < 1e-5
    assert float(found.residual.max()) <= 1e-6
    assert float(found.loss) == pytest.approx(float(loss(found.bank, z, targets)))
    torch.testing.assert_close(found.bank.norm(dim=1), torch.ones(4, dtype=torch.float64))


def test_two_classes_by_hand():
    # one image each, at right angles: by symmetry the prototypes are opposite, along the difference of the images
    z = torch.eye(2, dtype=torch.float64)
    found = gap.optimal_prototypes(z, torch.eye(2, dtype=torch.float64), kappa=1.0, tol=1e-8)
    half = math.sqrt(0.5)
    torch.testing.assert_close(found.bank, torch.tensor([[half, -half], [-half, half]], dtype=torch.float64))
    assert float(found.loss) == pytest.approx(2 * math.log1p(math.exp(-2 * half)))
    assert found.sign.tolist() == [1, 1]


def test_a_class_without_samples_moves_away_and_a_single_class_is_undefined():
    z, targets = problem()
    found = gap.optimal_prototypes(z, torch.cat([targets, torch.zeros(40, 1).double()], dim=1), kappa=KAPPA, tol=1e-5)
    assert not bool(found.undefined.any())
    assert float((z @ found.bank[4]).mean()) < 0
    single = gap.optimal_prototypes(z, torch.ones(40, 1).double(), kappa=KAPPA)
    assert single.undefined.tolist() == [True]
    assert math.isnan(float(single.residual))
    assert single.iterations == 0


@given(st.integers(1, 12), st.integers(2, 5), st.integers(2, 10), st.integers(0, 99), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_bound_is_below_the_distance(samples, classes, dim, seed, soft):
    z, targets = problem(samples, classes, dim, seed, soft=soft)
    anchors = unit(classes, dim, seed=seed + 7)
    bound, rank = gap.span_bound(anchors, z)
    assert rank == int(torch.linalg.matrix_rank(z))
    bank = gap.optimal_prototypes(z, targets, kappa=KAPPA, steps=20).bank
    assert bool((bound <= (anchors - bank).square().sum(1) + 1e-9).all())
    assert bool((bound <= gap.span_bound(anchors, z, energy=0.5).bound + 1e-9).all())


def test_span_and_class_bounds_by_hand():
    anchors = torch.eye(4, dtype=torch.float64)
    z = torch.eye(4, dtype=torch.float64)[[0, 0, 1]]
    assert gap.span_bound(anchors, z).bound.tolist() == pytest.approx([0, 0, 2, 2])
    assert gap.span_bound(anchors, z, energy=0.6).rank == 1
    assert gap.class_bound(anchors, z, torch.tensor([0, 1, 0])).tolist() == pytest.approx([0, 2, 2, 2])
    assert float(gap.span_bound(anchors, unit(9, 4)).bound.max()) < 1e-12


def test_regret_agrees_with_the_equations_one_sample_at_a_time():
    z, targets = problem(samples=150, soft=True)
    start, best = unit(4, 6, seed=5), unit(4, 6, seed=6)
    measured = gap.regret(start, z, targets, best=best, kappa=0.05, rho=0.1)
    bank, total = start, 0.0
    for i in range(len(z)):
        total += float(
            loss(bank, z[i : i + 1], targets[i : i + 1], 0.05) - loss(best, z[i : i + 1], targets[i : i + 1], 0.05)
        )
        assert float(measured.curve[i]) == pytest.approx(total)
        free = bank.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(free, z[i : i + 1], targets[i : i + 1], 0.05), free)
        assert float(measured.gradient[i]) == pytest.approx(float(gradient.norm()))
        bank = naive.update(
            bank, z[i], targets[i], torch.tensor(0.1 / math.sqrt(i + 1), dtype=torch.float64), kappa=0.05
        )
    torch.testing.assert_close(measured.bank, bank)


def test_modality_is_the_mean_over_pairs():
    anchors, z = unit(5, 8, seed=1), unit(7, 8, seed=2)
    found = gap.modality(anchors, z)
    pairs = z @ z.T
    assert found.image_image == pytest.approx(float((pairs.sum() - pairs.trace()) / 42))
    assert found.image_text == pytest.approx(float((z @ anchors.T).mean()))
    assert found.centroids == pytest.approx(float((z.mean(0) - anchors.mean(0)).norm()))
    assert math.isnan(gap.modality(anchors[:1], z).text_text)


def test_bad_input_is_refused():
    labels = space()
    z = stream(labels)
    for bad, message in ((z[:, :3], "shape"), (z[:0], "at least one"), (z * 3, "unit features")):
        with pytest.raises(FeatureError, match=message):
            gap.measure(labels, bad)
    with pytest.raises(FeatureError, match="one label from 0 to 5"):
        gap.measure(labels, z, truth=torch.full((len(z),), 6))
    with pytest.raises(SettingError, match="kappa"):
        gap.measure(labels, z, kappa=0.0)
    with pytest.raises(SettingError, match="energy"):
        gap.span_bound(labels.id_anchors, z, energy=0.0)
    for call in (
        lambda: gap.optimal_prototypes(z[:0], torch.zeros(0, 6).double(), kappa=KAPPA),
        lambda: gap.regret(labels.id_anchors, z[:0], torch.zeros(0, 6), best=labels.id_anchors, kappa=KAPPA, rho=0.1),
    ):
        with pytest.raises(FeatureError, match="at least one sample"):
            call()


@pytest.fixture
def files(tmp_path):
    labels = space(dtype=torch.float32)
    labels.save(tmp_path / "space.safetensors")
    z = stream(labels)
    tensors = {"features": z, "labels": (z @ labels.id_anchors.T).argmax(1)}
    save_file(tensors, tmp_path / "z.safetensors", metadata={"classes": json.dumps(labels.names)})
    return tmp_path


def run(*words):
    """What the command prints."""
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False).stdout


def test_the_command_measures_names(files):
    words = (files / "z.safetensors", "--space", files / "space.safetensors")
    row = json.loads(run(*words, "--json"))
    assert len(row["classes"]) == 6
    assert row["regret"][-1]["samples"] == 80
    assert row["bound"] <= row["distance"]
    told = run(*words)
    assert "all 6" in told
    assert "no guarantee" in told


def test_negatives_are_measured_like_names_and_have_no_truth():
    few = space(dtype=torch.float32).with_negatives(6)
    z = stream(few)
    found = gap.measure(few, z, negatives=True)
    assert (found.names, found.best.converged) == (few.negatives, True)
    with pytest.raises(SettingError, match="expected truth or negatives, got both"):
        gap.measure(few, z, truth=torch.zeros(len(z), dtype=torch.int64), negatives=True)


def test_the_search_says_whether_it_converged():
    z, targets = problem()
    for steps, wanted in ((0, False), (gap.NUMBERS.most_iterations, True)):
        found = gap.optimal_prototypes(z, targets, kappa=KAPPA, steps=steps)
        assert found.converged == wanted == (found.largest_residual <= gap.NUMBERS.tolerance)


def test_the_search_stops_by_the_loss_where_the_targets_can_be_met_exactly():
    z, anchors = unit(300, 12, seed=1, dtype=torch.float32), unit(5, 12, seed=2, dtype=torch.float32)
    targets = torch.softmax(z @ anchors.T / KAPPA, dim=1)  # the anchors themselves are the best bank, and v is 0 there
    found = gap.optimal_prototypes(z, targets, kappa=KAPPA, tol=1e-6, steps=1000)
    assert found.iterations < 300
    assert float(found.loss) <= float(loss(anchors, z, targets)) * (1 + 1e-5)
    # nothing pulls any more: the closed form is undefined
    found = gap.optimal_prototypes(*problem(soft=True, sharp=0.4), kappa=KAPPA, tol=1e-6, steps=300)
    assert bool(found.undefined.all())
