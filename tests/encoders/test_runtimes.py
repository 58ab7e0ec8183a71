"""Image towers in every runtime that is installed, and which of them is chosen."""

import gc
import signal
from typing import Any

import pytest
import torch

from helpers.tiny_models import pictures, save_clip
from unseen.encoders import load_encoder, runtimes
from unseen.encoders.runtimes import RUNTIMES, TowerRuntimes, installed_runtimes, measured_rates
from unseen.errors import EncoderError, MissingExtra, SettingError

pytest.importorskip("onnxscript")
# torch's exporter uses parts of itself that it deprecated
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The cache of all tests but one: exporting a tower takes seconds."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(autouse=True)
def cache(monkeypatch, shared):
    monkeypatch.setenv("UNSEEN_CACHE", str(shared))
    return shared


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("model"))


def test_vectors_agree_and_the_tower_is_exported_once(model, cache):
    expected = load_encoder(model, device="cpu", runtime="torch").images(pictures(10))
    for name in installed_runtimes():
        for dtype, close in ((torch.float32, 0.9999), (torch.bfloat16, 0.99)):
            encoder: Any = load_encoder(model, device="cpu", dtype=dtype, runtime=name)
            assert torch.cosine_similarity(encoder.images(pictures(10)), expected).min() > close
            assert encoder.images(pictures(1)).shape == (1, encoder.dim)
    assert len(list((cache / "towers").iterdir())) == 1


def test_a_tower_that_is_not_exported_runs_in_torch_unless_another_runtime_was_faster(model, monkeypatch, tmp_path):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    encoder: Any = load_encoder(model, device="cpu")
    assert encoder.runtimes.chosen == "torch"
    rates = encoder.runtimes.measure()
    assert set(rates) == set(installed_runtimes())
    assert measured_rates(encoder.name, torch.float32) == rates
    again: Any = load_encoder(model, device="cpu")
    assert again.runtimes.chosen == max(rates, key=lambda name: rates[name])
    assert load_encoder(model, device="cpu", runtime="torch").runtimes.chosen == "torch"  # type: ignore[attr-defined]


def test_ctrl_c_is_heard_after_towers_in_openvino_have_come_and_gone(model):
    pytest.importorskip("openvino")
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        load_encoder(model, device="cpu", dtype=dtype, runtime="openvino").images(pictures(1))
        gc.collect()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # an earlier test may have left its own
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def never():
    raise AssertionError("nothing is built to choose")


@pytest.mark.parametrize(
    ("installed", "dtype", "chosen"),
    [
        (RUNTIMES, torch.float32, "openvino"),
        (RUNTIMES, torch.bfloat16, "openvino"),
        (("onnxruntime", "torch"), torch.float32, "onnxruntime"),
        (("onnxruntime", "torch"), torch.bfloat16, "torch"),
        (("torch",), torch.float32, "torch"),
    ],
)
def test_without_a_measurement_the_one_that_is_fastest_as_a_rule_is_chosen(monkeypatch, installed, dtype, chosen):
    monkeypatch.setattr(runtimes, "installed_runtimes", lambda: list(installed))
    assert TowerRuntimes("a", dtype, torch.nn.Identity(), never, never).chosen == chosen


def test_a_tower_that_nothing_here_can_export_runs_in_torch_and_is_measured_there(model, monkeypatch, tmp_path):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path))
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None if name == "onnxscript" else True)
    encoder: Any = load_encoder(model, device="cpu")
    assert list(encoder.runtimes.measure(rounds=1)) == ["torch"]
    assert encoder.runtimes.chosen == "torch"


def test_runtimes_that_cannot_be_are_refused(model, monkeypatch):
    with pytest.raises(SettingError, match="expected a runtime out of openvino, onnxruntime, torch, got 'tensorrt'"):
        load_encoder(model, device="cpu", runtime="tensorrt")
    with pytest.raises(EncoderError, match="expected the runtime torch on cuda, got openvino; leave `runtime` out"):
        runtimes.check_runtime("openvino", torch.device("cuda"))
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingExtra, match=r"\(extra unseen\[fast\]\) .* pip install .*'openvino"):
        load_encoder(model, device="cpu", runtime="openvino")
