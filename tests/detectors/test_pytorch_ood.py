"""Our post-hoc formulas against pytorch-ood's, on the same features and the same head.

pytorch-ood scores outliers, so every sign is turned. It needs torchvision: where either is missing, all is skipped.
Where both mean the same formula but scale or squash it differently, the test says how.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helpers.streams import space, unit
from unseen.detectors.mcm import MCM
from unseen_bench.methods import posthoc
from unseen_bench.methods.posthoc import distance
from unseen_bench.methods.posthoc.adapter import PytorchOOD
from unseen_bench.methods.posthoc.base import LabelledImages, PostHoc
from unseen_bench.methods.zeroshot.energy import Energy
from unseen_bench.methods.zeroshot.entropy import Entropy
from unseen_bench.methods.zeroshot.maxlogit import MaxLogit

pytest.importorskip("torchvision", exc_type=ImportError)
theirs = pytest.importorskip("pytorch_ood.detector", exc_type=ImportError)

CLASSES, DIM = 5, 16
LABELS = space(CLASSES, 6, DIM, dtype=torch.float32)
CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}  # pytorch-ood computes in float32


def images() -> LabelledImages:
    """Labelled images with positive features, as after a ReLU: there, magnitudes and values are the same."""
    label = torch.arange(120) % CLASSES
    z = normalize((unit(CLASSES, DIM, seed=3)[label] + 0.4 * unit(120, DIM, seed=4)).abs(), dim=1).float()
    return LabelledImages(z, label, 3 * unit(CLASSES, DIM, seed=5).float(), 0.1 * unit(1, CLASSES, seed=6)[0].float())


IMAGES = images()
HEAD = torch.nn.Linear(DIM, CLASSES)
HEAD.weight.data, HEAD.bias.data = IMAGES.weight.clone(), IMAGES.bias.clone()


def arrivals() -> Tensor:
    return normalize(unit(40, DIM, seed=7).abs(), dim=1).float()


def ours(name: str, **settings: float) -> Any:
    """A method with the head and the images above: no head is fitted, so that scikit-learn is not needed."""
    return given(posthoc.REGISTRY[name](LABELS, **settings))


def given(detector: PostHoc) -> PostHoc:
    object.__setattr__(detector, "_images", IMAGES)
    return detector


def maps(z: Tensor) -> Tensor:
    return z[:, :, None, None]  # pooled features as feature maps of one pixel


def flat_head(x: Tensor) -> Tensor:
    return HEAD(x.flatten(1))


def test_msp_is_the_log_odds_of_their_probability() -> None:
    z = arrivals()
    torch.testing.assert_close(
        torch.sigmoid(ours("fit-msp").p_known(z)), -theirs.MaxSoftmax.score(IMAGES.logits(z)), **CLOSE
    )


def test_energy() -> None:
    z = arrivals()
    torch.testing.assert_close(ours("fit-energy").p_known(z), -theirs.EnergyBased.score(IMAGES.logits(z)), **CLOSE)


def test_odin_on_features_is_the_log_odds_of_their_probability() -> None:
    z = arrivals()
    found = theirs.ODIN(HEAD, eps=0.0014, temperature=1000.0).predict(z)
    torch.testing.assert_close(torch.sigmoid(ours("fit-odin").p_known(z).double()), -found.double(), **CLOSE)
    steep = theirs.ODIN(HEAD, eps=0.1, temperature=1.0).predict(z)  # at T = 1000 every probability is near 1 / K
    torch.testing.assert_close(torch.sigmoid(ours("fit-odin", step=0.1, temperature=1.0).p_known(z)), -steep, **CLOSE)


def test_gradnorm_of_the_heads_weights() -> None:
    z = arrivals()
    found = theirs.GradNorm(HEAD, param_filter=lambda name: name == "weight").predict(z)
    torch.testing.assert_close(ours("fit-gradnorm").p_known(z), -found, **CLOSE)


def test_gen_is_their_mean_times_the_number_of_classes() -> None:
    z = arrivals()
    for count in (3, CLASSES):
        found = theirs.GEN.score(IMAGES.logits(z), gamma=0.1, M=count)
        torch.testing.assert_close(ours("fit-gen", largest=count).p_known(z), -count * found, **CLOSE)


def test_react_with_our_limit() -> None:
    z, react = arrivals(), ours("fit-react")
    found = theirs.ReAct(None, flat_head, threshold=react.limit).predict_feature_maps(maps(z))
    torch.testing.assert_close(react.p_known(z), -found, **CLOSE)
    fitted = theirs.ReAct(None, flat_head, percentile=0.9).fit_feature_maps(maps(IMAGES.z), IMAGES.label)
    assert fitted.threshold == pytest.approx(react.limit, abs=1e-3)  # they interpolate between two activations


@pytest.mark.parametrize("dropped", [0.5, 0.75])
def test_ash_s_and_scale(dropped: float) -> None:
    z = arrivals()
    ash = theirs.ASH(None, flat_head, variant="ash-s", percentile=dropped).predict_feature_maps(maps(z))
    torch.testing.assert_close(ours("fit-ash", dropped=dropped).p_known(z), -ash, **CLOSE)
    scale = theirs.SCALE(None, flat_head, percentile=dropped).predict_feature_maps(maps(z))
    torch.testing.assert_close(ours("fit-scale", dropped=dropped).p_known(z), -scale, **CLOSE)


def test_vim() -> None:
    z, vim = arrivals(), ours("fit-vim", share=0.5)
    found = theirs.ViM(None, d=DIM // 2, w=IMAGES.weight, b=IMAGES.bias).fit_features(IMAGES.z, IMAGES.label)
    torch.testing.assert_close(vim.p_known(z), -found.predict_features(z), atol=1e-3, rtol=1e-3)


def test_knn_is_a_cosine_where_theirs_is_a_distance() -> None:
    pytest.importorskip("sklearn")
    z = arrivals()
    found = theirs.KNN(None, k=10).fit_features(IMAGES.z, IMAGES.label).predict_features(z)
    torch.testing.assert_close(2 - 2 * ours("fit-knn", k=10).p_known(z).double(), found.double().square(), **CLOSE)


def test_mahalanobis_and_rmds_with_their_unshrunk_scatter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs is half the squared distance under the sum of outer products; ours shrinks the covariance first."""

    def scatter(centred: Tensor) -> Tensor:
        return torch.linalg.inv(centred.T @ centred + 1e-6 * torch.eye(DIM))

    monkeypatch.setattr(distance, "precision", scatter)
    z = arrivals()
    found = theirs.Mahalanobis(None).fit_features(IMAGES.z, IMAGES.label).predict_features(z)
    torch.testing.assert_close(ours("fit-mahalanobis").p_known(z), -2 * found, atol=1e-3, rtol=1e-3)
    relative = theirs.RMD(None).fit_features(IMAGES.z, IMAGES.label).predict_features(z)
    torch.testing.assert_close(ours("fit-rmds").p_known(z), -relative, atol=1e-3, rtol=1e-3)


def test_the_zero_shot_scores_of_the_text() -> None:
    z = arrivals()
    cosine = z @ LABELS.id_anchors.T
    mcm = theirs.MCM(None, LABELS.id_anchors).predict_features(z)
    torch.testing.assert_close(torch.sigmoid(MCM(LABELS).score(None, z).score), -mcm, **CLOSE)
    torch.testing.assert_close(MaxLogit(LABELS).score(None, z).score, -theirs.MaxLogit.score(cosine), **CLOSE)
    torch.testing.assert_close(Energy(LABELS).score(None, z).score, -theirs.EnergyBased.score(cosine), **CLOSE)
    torch.testing.assert_close(Entropy(LABELS).score(None, z).score, -theirs.Entropy.score(cosine), **CLOSE)


def test_the_adapter_runs_their_detectors() -> None:
    z = arrivals()
    energy = given(PytorchOOD(LABELS, theirs=theirs.EnergyBased(None), on="logits"))
    torch.testing.assert_close(energy.score(None, z).score, ours("fit-energy").score(None, z).score, **CLOSE)
    vim = given(PytorchOOD(LABELS, theirs=theirs.ViM(None, d=DIM // 2, w=IMAGES.weight, b=IMAGES.bias)))
    torch.testing.assert_close(vim.score(None, z).score, ours("fit-vim").score(None, z).score, atol=1e-3, rtol=1e-3)
