import pytest
import torch
from torch.nn.functional import normalize

from helpers.streams import space, unit
from unseen.errors import DataError, SettingError, StateError
from unseen_bench.checks import check_detector
from unseen_bench.methods import posthoc
from unseen_bench.metrics import auroc

LABELS = space(known=4, negative=5, dim=24)


def images(count=80, seed=5, noise=0.5):
    label = torch.arange(count) % 4
    z = normalize(LABELS.id_anchors[label] + noise * unit(count, 24, seed=seed), dim=1)
    return z, label


def fit(name, **settings):
    return posthoc.fit(posthoc.REGISTRY[name](LABELS, **settings), *images())


@pytest.mark.parametrize("name", posthoc.REGISTRY)
def test_every_fitted_method_passes_the_checks_of_a_detector(name):
    check_detector(fit(name))


@pytest.mark.parametrize("name", posthoc.REGISTRY)
def test_every_method_ranks_images_of_the_classes_above_others(name):
    detector = fit(name)
    known, label = images(seed=6)
    reading = detector.score(None, known)
    assert float((reading.label == label).double().mean()) == 1
    least = 0.7 if name == "fit-ash" else 0.8  # of 24 numbers it keeps two
    assert auroc(reading.score, detector.score(None, unit(80, 24, seed=7)).score) > least


def test_head_methods_match_their_formulas():
    z, head = images(seed=6)[0], fit("fit-msp").images
    logits = z @ head.weight.T + head.bias
    share = torch.softmax(logits, dim=1)
    best = share.amax(1)
    read = {name: fit(name).score(None, z).score for name in ("fit-msp", "fit-energy", "fit-gradnorm", "fit-gen")}
    torch.testing.assert_close(torch.sigmoid(read["fit-msp"]), best)
    torch.testing.assert_close(read["fit-energy"], torch.logsumexp(logits, 1))
    torch.testing.assert_close(read["fit-gen"], -(share * (1 - share)).pow(0.1).sum(1))
    weight = head.weight.clone().requires_grad_()
    log_share = torch.log_softmax(z[:1] @ weight.T + head.bias, dim=1)
    (gradient,) = torch.autograd.grad(-log_share.mean(), weight)  # KL(uniform, softmax) up to a constant
    torch.testing.assert_close(read["fit-gradnorm"][0], gradient.abs().sum())


def test_odin_steps_along_the_gradient_of_the_largest_log_softmax():
    z, head = images(seed=6)[0][:3].clone().requires_grad_(), fit("fit-odin").images
    tempered = (z @ head.weight.T + head.bias) / 1000
    torch.log_softmax(tempered, 1).amax(1).sum().backward()
    moved = (z.detach() + 0.0014 * z.grad.sign()) @ head.weight.T + head.bias
    expected = torch.softmax(moved / 1000, 1).amax(1).logit()
    torch.testing.assert_close(fit("fit-odin").confidence(z.detach()), expected)


def test_distance_methods_match_their_definitions():
    z, fitted = images(seed=6)[0][:5], fit("fit-mahalanobis")
    means = torch.stack([fitted.images.z[fitted.images.label == c].mean(0) for c in range(4)])
    apart = z.unsqueeze(1) - means
    squared = torch.einsum("tkd,de,tke->tk", apart, fitted.shared_precision, apart)
    torch.testing.assert_close(fitted.confidence(z), -squared.amin(1))
    nearest = (z @ fitted.images.z.T).sort(1, descending=True).values
    torch.testing.assert_close(fit("fit-knn", k=3).confidence(z), nearest[:, 2])
    relative = fit("fit-rmds")
    apart = z - relative.images.z.mean(0)
    background = torch.einsum("td,de,te->t", apart, relative.background, apart)
    torch.testing.assert_close(relative.confidence(z), background - squared.amin(1))


def test_vim_measures_the_length_outside_the_main_directions():
    vim = fit("fit-vim")
    assert vim.residual_directions.shape == (24, 12)
    inside = vim.origin + normalize(torch.linalg.svd(vim.residual_directions.T).Vh[12:].sum(0), dim=0)
    assert float(vim._residual(inside[None])[0]) < 1e-9


def test_react_and_ash_with_neutral_settings_reduce_to_energy():
    z, plain = images(seed=6)[0], fit("fit-energy").confidence(images(seed=6)[0])
    torch.testing.assert_close(
        fit("fit-react", quantile=1.0).confidence(z.clamp(-0.2, 0.2)), fit("fit-energy").confidence(z.clamp(-0.2, 0.2))
    )
    head = fit("fit-ash", dropped=0.0).images
    torch.testing.assert_close(fit("fit-ash", dropped=0.0).confidence(z), torch.logsumexp(head.logits(z * torch.e), 1))
    assert not torch.equal(fit("fit-scale").confidence(z), plain)


def test_unfitted_methods_and_missing_classes_are_refused():
    with pytest.raises(StateError, match=r"expected 'fit-knn' to be fitted.*posthoc\.fit"):
        posthoc.KNN(LABELS).score(None, images()[0])
    z, label = images()
    with pytest.raises(DataError, match="expected images of all 4 known names"):
        posthoc.fit(posthoc.MSP(LABELS), z[label < 3], label[label < 3])
    with pytest.raises(SettingError, match="quantile"):
        posthoc.ReAct(LABELS, quantile=0.0)
