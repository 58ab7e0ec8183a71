"""Every table and figure of the paper has runs, sources and a place in the report."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import openood, suite_files
from helpers.commands import run
from helpers.tiny_models import save_clip
from unseen import LabelSpace, detectors
from unseen.encoders import load_encoder
from unseen.errors import DataError, SettingError
from unseen_bench import suites
from unseen_bench.exhibits import paper as report
from unseen_bench.exhibits.grid import tex
from unseen_bench.methods.prompts import REGISTRY, LearnOptions
from unseen_bench.mining import Corpus, mine
from unseen_bench.oracles import ORACLES
from unseen_bench.run import leaderboard, paper
from unseen_bench.run.runs import FITTED

REPO = Path(__file__).parents[2]


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The folder of a small suite that stands in for every exhibit."""
    (tmp_path / "features").mkdir()
    table, methods = suite_files.write(tmp_path / "features"), ("mcm", "online", "online-id")
    exhibits = tuple(
        replace(one, stand_ins=(str(table),), methods=methods, sweeps=("kappa=0.02,0.05",) if one.sweeps else ())
        for one in paper.PAPER
    )
    monkeypatch.setattr(paper, "PAPER", exhibits)
    return table.parent


def test_the_sixteen_tables_and_the_figure_are_there_in_order():
    assert [one.name for one in paper.PAPER] == [*(f"Table {n}" for n in range(1, 17)), "Figure 1"]
    assert not any(suites.needs_images(name) for one in paper.PAPER for name in one.stand_ins)
    used = {name for one in paper.PAPER for name in one.suites}
    assert used == {name for name in suites.names() if suites.needs_images(name)}
    ours = [{line.split()[0] for line in suites.read(name)["paper"]} & {"oracle-released", "online"} for name in used]
    assert ours == [{"oracle-released"}] * len(used)  # what is printed as "Ours" stands beside no label-free line
    assert [one.name for one in paper.select_exhibits("1,9,F1")] == ["Table 1", "Table 9", "Figure 1"]
    with pytest.raises(SettingError, match=r"expected exhibits out of 1, 2, .* 16, F1, got 17, F2; "):
        paper.select_exhibits("1,17,f2")


def test_without_data_every_exhibit_says_which_files_it_needs(tmp_path):
    run("bench", "paper", "-o", tmp_path)
    text = (tmp_path / "paper.md").read_text()
    assert text.count("State: needs data.") == 17
    assert "imagenet needs --data, a folder of images: `unseen bench imagenet --check DATA` says which" in text
    assert "imagenet200 (stand-in) needs text-imagenet1k.safetensors" in text
    assert "published elsewhere: openood-imagenet; these see a batch of 256 images" in text
    assert "| reneg | 87.12 | 56.57 | 97.19 | 14.66 |" in text
    assert "printed: imagenet-336" in text
    assert r"text-imagenet1k.safetensors, images-imagenet\_\allowbreak{}val5" in (tmp_path / "paper.tex").read_text()


@pytest.fixture
def on_disk(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A few photos per set where OpenOOD's scripts put them, of Places and SUN none, and a small CLIP."""
    openood.mine_few_words(monkeypatch, tmp_path)
    root = openood.write(tmp_path / "data")
    for name in ("SUN", "Places"):
        shutil.rmtree(root / name)
    return root, save_clip(tmp_path / "model", context=77, letters=True)


def paper_of(monkeypatch, data, model, out, *more, exhibits):
    """The report of `bench paper` with these exhibits alone, of which none is complete, and what it said."""
    monkeypatch.setattr(paper, "PAPER", exhibits)
    words = ("--data", data, "--encoder", model, "--seeds", 1, "-o", out)
    result = run("bench", "paper", *words, *more, code=1)
    return (out / "paper.md").read_text(), result.stderr


def test_a_table_of_which_images_are_missing_says_so_and_the_exit_code_is_1(on_disk, toy, tmp_path, monkeypatch):
    one = paper.Exhibit("Table 1", "four sets", ("imagenet",), (str(toy / "toy.toml"),), ("mcm", "neglabel"))
    text, said = paper_of(monkeypatch, *on_disk, tmp_path, "--features", toy, exhibits=(one,))
    assert "State: in part, on imagenet; stand-in: toy." in text
    assert "Missing: imagenet ran without the whole of known (6 of 50,000 images), inaturalist (3 of 10,000" in text
    assert "sun (0 of 10,000 images)" in text
    line = next(line for line in text.splitlines() if line.startswith("| method | inaturalist AUROC"))
    assert "average of 2 AUROC" in line
    printed = next(line for line in text.splitlines() if line.startswith("| *neglabel, as printed*"))
    assert printed.split(" | ")[-6] == f"{(99.49 + 90.22) / 2:.2f}"  # of the same two sets
    assert "Table 1 is incomplete: imagenet ran without" in said


def test_every_suite_over_images_reads_what_the_download_scripts_leave(on_disk, tmp_path, monkeypatch):
    own = [name for name in suites.names() if suites.needs_images(name) and suites.read(name)["encoder"] == "ViT-B/16"]
    own.remove("imagenet-lapt")
    one = paper.Exhibit("Table 1", "all", tuple(own), methods=("online",), orders=("shuffled",))
    text, _ = paper_of(monkeypatch, *on_disk, tmp_path, exhibits=(one,))  # three photos are not 10,000
    assert f"State: in part, on {', '.join(own)}." in text


def test_advice_of_a_check_names_the_places_of_what_is_missing(on_disk):
    result = run("bench", "--check", on_disk[0], code=1)
    assert "suites.json                              ← missing" in result.stderr
    result = run("bench", "imagenet-lapt", "--check", on_disk[0], code=1)
    assert "known                6 of 50,000 images  ← incomplete" in result.stderr
    assert (
        "missing, left out: looked for in benchmark_imglist/imagenet/test_sun.txt or images_largescale/sun or SUN"
        in (result.stderr)
    )
    assert "lapt.safetensors  ← missing: `unseen bench learn --method lapt` writes it" in result.stderr


def test_prompts_learned_by_lapt_are_what_table_8_reads(on_disk, tmp_path, monkeypatch):
    root, model = on_disk
    (root / "imagenet_classes.txt").write_text("n01440764 tench\nn01443537 goldfish\nn01484850 great white shark\n")
    letters = Corpus("letters", {"noun.letter": tuple("abcdefghij")})
    space = mine(["tench", "goldfish", "great white shark"], load_encoder(model), negatives=4, corpus=letters)
    space.save(tmp_path / "space.safetensors")
    table_8 = (paper.Exhibit("Table 8", "LAPT", ("imagenet-lapt",), methods=("online",)),)
    text, _ = paper_of(monkeypatch, *on_disk, tmp_path, exhibits=table_8)
    assert f"imagenet-lapt needs {root}/lapt.safetensors: `unseen bench learn --method lapt --examples PHOTOS" in text
    learn = ("--method", "lapt", "--examples", root / "sketch", "--space", tmp_path / "space.safetensors")
    monkeypatch.setattr("unseen_bench.methods.prompts.LearnOptions", partial(LearnOptions, context=2))
    run("bench", "learn", *learn, "--encoder", model, "-o", root / "lapt.safetensors")
    learned = LabelSpace.load(root / "lapt.safetensors")
    assert learned.negatives == space.negatives
    assert not torch.isclose(learned.ood_anchors, space.ood_anchors).all(dim=1).any()  # the learned context words them
    text, _ = paper_of(monkeypatch, *on_disk, tmp_path, exhibits=table_8)
    assert "State: in part, on imagenet-lapt." in text
    suite = suites.load_images("imagenet-lapt", root, encoder=str(model))
    torch.testing.assert_close(suite.labels_of("neglabel").ood_anchors, learned.ood_anchors)
    (root / "imagenet_classes.txt").write_text("n01440764 tench\nn01443537 goldfish\n")
    with pytest.raises(
        DataError, match=r"expected the 2 names of the suite in .*'great white shark' is in one of them"
    ):
        suites.load_images("imagenet-lapt", root, encoder=str(model))


def test_a_suite_that_cannot_be_loaded_is_a_reason_and_exit_code_1(toy, tmp_path):
    next(toy.glob("near*")).write_bytes(b"torn")
    words = ("--features", toy, "--tables", "1", "--seeds", 1, "-o", tmp_path, "--json")
    found = json.loads(run("bench", "paper", *words, code=1).stdout)
    assert found["incomplete"] == ["Table 1"]
    assert found["exhibits"]["Table 1"]["state"] == "needs data"
    assert any("was left out: expected" in told for told in found["exhibits"]["Table 1"]["missing"])


def test_the_readme_names_what_of_the_printed_tables_cannot_be_run():
    printed = {line.split()[0] for name in suites.names() for line in suites.read(name).get("paper", ())}
    rest = printed - {*detectors.names(), *FITTED, *ORACLES, *REGISTRY}
    assert rest - {"augmix-react", "augmix-ash", "pixmix-knn", "pixmix-rotpred", "oe-msp", "vos-ebo"} == {
        "zoc", "clipn", "infoood"
    }  # fmt: skip
    text = " ".join((REPO / "README.md").read_text().split())
    assert "its tables but for ZOC, CLIPN, InfoOOD as published, and those that train a network" in text


def test_printed_averages_that_are_not_the_mean_of_their_sets_are_said():
    found = {told.replace(" the mean of its sets is ", "") for one in paper.PAPER for told in paper.odd_averages(one)}
    assert found == {
        "imagenet, gl-mcm, average: FPR95 is printed 35.06,34.31",
        "imagenet, dnm, average: FPR95 is printed 22.33,22.37",
        "imagenet-336, adaneg, average: AUROC is printed 96.84,96.87",
        "imagenet-sketch, oracle-released, average: FPR95 is printed 10.72,9.72",
        "imagenet-lapt, adaneg, average: FPR95 is printed 16.32,16.57",
        "openood-cifar10, adaneg, far: AUROC is printed 99.26,99.24",
        "seed 6: AUROC is printed 97.65,97.67",
        "seed 6: FPR95 is printed 12.75,12.80",
    }


def test_stand_ins_run_and_the_report_is_written_in_three_forms(toy, tmp_path):
    words = ("--features", toy, "--tables", "1,11,12,13,F1", "--seeds", 2, "-o", tmp_path)
    run("bench", "paper", *words)
    page, text, tex = ((tmp_path / f"paper.{form}").read_text() for form in ("html", "md", "tex"))
    assert text.count("stand-in: ") >= 5
    assert {path.name for path in tmp_path.glob("figure-*.svg")} == {"figure-toy-kappa.svg", "figure-toy-shuffled.svg"}
    assert "toy: online, each seed" in text
    assert "| mean |" in text
    assert "| 9 | 99.91 | 0.45 | 99.01 | 4.64 | 95.46 | 27.13 | 97.28 | 15.96 | 97.91 | 12.05 |" in text
    assert "| AdaNeg+NegLabel | 2d(K+L) | 38.05" in text
    assert page.count("<h2") == tex.count(r"\section*") == 5
    assert "<svg" in page
    assert "border-collapse" in page  # the style is in the page
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") > 5
    assert tex.count("{") == tex.count("}")


def test_a_stand_in_whose_seeds_are_many_streams_has_fewer_and_says_so(toy):
    (temporal,) = paper.select_exhibits("10")
    suite = suites.load(str(toy / "toy.toml"), toy)
    (outcome := paper.Outcome(temporal)).add(suite, [])
    assert "toy runs with at most 3 seeds." in report.section(outcome).notes
    own = replace(temporal, suites=(suite.source.name,))  # as printed: as many as were asked for
    assert [len({run.seed for run in one.runs(suite, 10)}) for one in (temporal, own)] == [3, 10]


def test_every_character_of_a_note_can_be_typeset():
    assert tex(r"a_b 5% {x} $1 \d ~^ `code` — ±") == (
        r"a\_b 5\% \{x\} \$1 \textbackslash{}d \textasciitilde{}\textasciicircum{} code -- $\pm$"
    )


MINE = """
from dataclasses import dataclass
from typing import ClassVar
from unseen.detectors import DetectorOutput
from unseen.detectors.base import Frozen

@dataclass(frozen=True, eq=False)
class Mine(Frozen):
    name: ClassVar[str] = "mine"

    def read(self, state, z):
        return DetectorOutput.frozen(*(z @ self.labels.id_anchors.T).max(dim=1))

class Peeks(Mine):
    def read(self, state, z):
        reading = super().read(state, z)
        return reading._replace(score=reading.score - reading.score.mean())
"""


def test_a_submitted_detector_gets_its_line_after_the_checks(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(leaderboard, "SUITES", (str(toy / "toy.toml"),))
    (tmp_path / "my_detector.py").write_text(MINE)
    result = run("bench", "--submit", f"{tmp_path}/my_detector.py:Mine", "--features", toy)
    assert f"| {tmp_path}/my_detector.py:Mine | " in result.stdout
    with pytest.raises(SettingError, match="to pass the checks of a detector, got on toy: "):
        run("bench", "--submit", f"{tmp_path}/my_detector.py:Peeks", "--features", toy)
    with pytest.raises(SettingError, match="expected --features with --submit"):
        run("bench", "--submit", f"{tmp_path}/my_detector.py:Mine")
    with pytest.raises(SettingError, match="expected a label-free method, got fit-knn"):
        leaderboard.submit("fit-knn", toy, workers=1)
